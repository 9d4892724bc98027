"""Recovery of a log at a start: which files are trusted, rebuilt or cut.

Zone: deterministic.
"""
