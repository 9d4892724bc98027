"""The request handlers of the cluster room.

Zone: deterministic.
"""
