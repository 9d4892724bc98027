"""The clients of a run: producers, readers, an administrator.

Zone: deterministic.
"""
