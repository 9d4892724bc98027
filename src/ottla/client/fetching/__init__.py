"""Reading partitions from given offsets on: requests, sessions, the batches that come.

Zone: real.
"""
