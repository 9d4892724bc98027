"""A request that cannot be answered yet waits here.

Zone: deterministic.
"""
