"""What a log knows of idempotent and transactional producers, and its snapshots on disk.

Zone: deterministic.
"""
