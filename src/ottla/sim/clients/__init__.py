"""Clusters whose clients are the product's own: their pure cores, over the simulated network and clock.

Zone: deterministic.
"""
