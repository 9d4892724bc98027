"""Metrics that clients push (KIP-714): subscriptions, their pushes, and how /metrics shows them.

Zone: deterministic.
"""
