"""Hours of mixed load, and a verdict: whether brokers keep everything, and their size. See __main__."""
