"""Replication of partitions between brokers: Produce, Fetch, followers, the ISR and the controller's orders.

Zone: deterministic.
"""
