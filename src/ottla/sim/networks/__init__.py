"""The simulated network, and clients of the wire level on it.

Zone: deterministic.
"""
