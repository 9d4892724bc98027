"""Maintenance of a topic's table: small files become large ones, old snapshots expire, unnamed files are deleted.

Zone: real. Each commit of it keeps the offsets of the topic, so that the copy continues as if nothing had happened.
"""
