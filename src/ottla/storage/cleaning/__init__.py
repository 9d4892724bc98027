"""Compaction: keeps only the newest record of each key in the older part of a log.

Zone: deterministic. Decides about batches and records; `record.compaction` moves the bytes.
"""
