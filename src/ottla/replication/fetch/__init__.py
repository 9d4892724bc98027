"""The Fetch API: sessions, reads and responses for consumers and followers.

Zone: deterministic.
"""
