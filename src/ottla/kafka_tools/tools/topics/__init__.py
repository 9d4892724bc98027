"""Topics, their records and their offsets.

Zone: pure. This module is only the name.
"""
