"""Partitions: their replicas, leaders and logs.

Zone: pure. This module is only the name.
"""
