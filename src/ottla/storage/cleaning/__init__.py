"""Compaction: what of a log's older part stays.

Zone: deterministic. Decisions about batches and records live here; bytes are moved by `record.compaction`.
"""
