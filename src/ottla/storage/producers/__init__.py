"""The state of a log's idempotent and transactional producers, and its snapshots on disk.

Zone: deterministic.
"""
