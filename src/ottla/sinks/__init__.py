"""Results that leave the log: sinks whose results and positions change together.

Zone: real. Each sink is a module of its own, with its own extra to install; ordinary Kafka clients all of them, which
know nothing of the broker.
"""
