"""The runtime under groups and transactions: journal, loading, append → apply → effects. It depends on neither.

Zone: deterministic.
"""
