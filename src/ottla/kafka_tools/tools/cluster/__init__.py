"""Brokers, their settings and what they can do.

Zone: pure. This module is only the name.
"""
