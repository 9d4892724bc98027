"""Assignors of consumer groups: who reads which partition.

Zone: pure.
"""
