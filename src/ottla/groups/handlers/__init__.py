"""The request handlers of consumer groups.

Zone: deterministic.
"""
