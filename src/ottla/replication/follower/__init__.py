"""Followers: fetchers of this broker, and what they ask the leaders.

Zone: deterministic.
"""
