"""Runs of a cluster with compacted topics: deleted keys stay deleted on every replica.

Zone: deterministic.
"""
