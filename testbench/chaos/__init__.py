"""Clients that count, faults that hunt, and a verdict: whether a cluster keeps what it acknowledged. See __main__."""
