"""Tools that measure and verify clients: perf-test, verifiable and e2e-latency.

Zone: pure. This module is only the name.
"""
