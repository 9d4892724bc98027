"""Consumer transactions.

Zone: pure. This module is only the name.
"""
