"""Commands that write, read and measure records.

Zone: real.
"""
