"""Access control lists.

Zone: pure. This module is only the name.
"""
