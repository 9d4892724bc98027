"""The runtime under groups and transactions: journal, loading, append → apply → effects. It knows neither.

Zone: deterministic.
"""
