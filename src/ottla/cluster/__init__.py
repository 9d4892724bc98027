"""Cluster image, topics, placement, the layout of the metadata nodes.

Zone: deterministic.
"""
