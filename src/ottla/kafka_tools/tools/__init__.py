"""The tools: one module each, imported when it is run.

Zone: pure. This module is only the name.
"""
