"""Records from and to standard input and output.

Zone: pure. This module is only the name.
"""
