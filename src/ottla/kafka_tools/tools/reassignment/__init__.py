"""kafka-reassign-partitions.

Zone: real.
"""
