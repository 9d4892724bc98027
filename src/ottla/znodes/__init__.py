"""The embedded metadata store: ZooKeeper's data model, journaled.

Zone: deterministic.
"""
