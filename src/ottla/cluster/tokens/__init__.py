"""The delegation tokens in the metadata store.

Zone: deterministic.
"""
