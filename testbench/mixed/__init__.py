"""Clusters in simulation whose brokers are of two releases, and roll from one to the other and back.

Zone: real. The code of the earlier release comes from the history of the repository.
"""
