"""The tools, in a folder for each kind: one module each, imported when it is run.

Zone: pure. This module is only the name.
"""
