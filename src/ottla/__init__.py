"""Ottla: an event-streaming broker that speaks the Kafka protocol and keeps the Kafka log format.

Zone: pure. Contains only the version, so that `import ottla` is cheap.
"""

__version__ = "0.2.0.dev0"
