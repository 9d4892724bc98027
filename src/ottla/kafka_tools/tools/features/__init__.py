"""Feature levels.

Zone: pure. This module is only the name.
"""
