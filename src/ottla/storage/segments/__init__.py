"""Segments of a log: files, scans, reads.

Zone: deterministic.
"""
