"""The source: readers of batch and streaming queries, and their positions.

Zone: real.
"""
