"""Reading partitions from given offsets on: requests, sessions, fetched batches.

Zone: real.
"""
