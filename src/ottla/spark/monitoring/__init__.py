"""Metrics of the streaming queries of a session, for Prometheus.

Zone: real.
"""
