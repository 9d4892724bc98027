"""The ACLs in the metadata store, and the requests about them.

Zone: deterministic.
"""
