"""One partition on this broker: its roles, its in-sync replicas, and all appends to its log.

Zone: deterministic.
"""
