"""One partition across brokers; the only writer of a log.

Zone: deterministic.
"""
