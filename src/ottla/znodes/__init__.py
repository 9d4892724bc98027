"""The embedded metadata store: ZooKeeper's data model with a journal on disk.

Zone: deterministic.
"""
