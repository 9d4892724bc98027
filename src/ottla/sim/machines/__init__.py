"""Simulated machines: brokers' processes, their clock, workers, and the metadata store's ensemble.

Zone: deterministic.
"""
