"""Clusters with Ottla's own clients: their pure cores run over the simulated network and clock.

Zone: deterministic.
"""
