"""Clients of the wire level that use transactions and groups, in a simulated cluster, and what must hold of them.

Zone: deterministic.
"""
