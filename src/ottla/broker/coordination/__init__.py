"""The coordinators of a broker, and what they see of the cluster.

Zone: deterministic.
"""
