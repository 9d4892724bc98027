"""Simulated drives: files, faults, what a power loss leaves.

Zone: deterministic.
"""
