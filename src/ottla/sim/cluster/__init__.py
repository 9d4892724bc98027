"""Whole clusters under simulation: several brokers, their metadata store, clients that look for leaders.

Zone: real.
"""
