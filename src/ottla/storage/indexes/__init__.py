"""Indexes of a segment: offsets, timestamps, aborted transactions, leader epochs.

Zone: deterministic.
"""
