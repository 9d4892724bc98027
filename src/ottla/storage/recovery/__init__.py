"""Recovery of a log at a start: what can be believed, what is rebuilt, what is cut.

Zone: deterministic.
"""
