"""Consumer groups.

Zone: pure. This module is only the name.
"""
