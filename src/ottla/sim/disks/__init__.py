"""Simulated drives: files, faults, and the effects of a power loss.

Zone: deterministic.
"""
