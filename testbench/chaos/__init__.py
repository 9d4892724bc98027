"""Clients that count records, faults, and a verdict: whether a cluster keeps acknowledged records. See __main__."""
