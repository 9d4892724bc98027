"""Runs of a cluster with compacted topics: what is deleted stays deleted, on every replica.

Zone: deterministic.
"""
