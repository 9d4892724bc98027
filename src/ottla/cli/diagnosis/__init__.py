"""The checks of `ottla doctor`: settings, addresses, the cluster.

Zone: real.
"""
