"""Simulated machines: the processes of brokers, their clock and workers, and the ensemble of the metadata store.

Zone: deterministic.
"""
