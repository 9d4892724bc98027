"""Documents, tables and text that commands print.

Zone: real.
"""
