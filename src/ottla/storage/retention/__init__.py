"""Retention: which segments go, and when.

Zone: deterministic.
"""
