"""Simulated clusters: several brokers, their metadata store, and clients that find leaders through Metadata.

Zone: real.
"""
