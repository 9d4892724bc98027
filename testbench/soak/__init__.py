"""Hours of mixed load, and a verdict: whether brokers lose records, or grow. See __main__."""
