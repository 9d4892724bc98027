"""One partition on this broker: its roles, its in-sync replicas, the only writer of its log.

Zone: deterministic.
"""
