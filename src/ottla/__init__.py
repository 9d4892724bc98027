"""Ottla: an event-streaming broker that speaks the Kafka protocol and keeps the Kafka log format.

Zone: pure. Only the version lives here, so that `import ottla` costs nothing.
"""

__version__ = "0.1.0"
