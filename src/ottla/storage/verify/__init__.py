"""Checks and repairs a data directory that no broker uses: `ottla log verify`, `ottla log repair`.

Zone: pure. This file has no code.
"""
