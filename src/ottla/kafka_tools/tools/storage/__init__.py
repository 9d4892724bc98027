"""Files of a broker's log directory.

Zone: pure. This module is only the name.
"""
