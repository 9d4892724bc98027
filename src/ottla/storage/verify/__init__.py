"""A deep check of a data directory that no broker uses, and its repair: `ottla log verify`, `ottla log repair`.

Zone: pure. The package's name only.
"""
