"""Assignors of consumer groups: they decide which member reads which partition.

Zone: pure.
"""
