"""The simulated network, and clients that speak the wire protocol on it.

Zone: deterministic.
"""
