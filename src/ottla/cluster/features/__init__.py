"""Finalized features (KIP-584): levels that all brokers of a cluster follow, and their changes.

Zone: pure.
"""
