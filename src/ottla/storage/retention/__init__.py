"""Retention: which segments are removed, and when.

Zone: deterministic.
"""
