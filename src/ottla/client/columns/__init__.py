"""Record batches as Arrow columns, and back.

Zone: real.
"""
