"""The controller: the one broker that elects leaders, makes and removes topics, and tells all others.

Zone: deterministic.
"""
