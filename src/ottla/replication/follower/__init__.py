"""Followers: the fetchers of this broker, and their requests to leaders.

Zone: deterministic.
"""
