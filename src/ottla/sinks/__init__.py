"""Sinks to other systems, which change results and positions together.

Zone: real. Each sink is a package of its own, with its own extra to install. All are ordinary Kafka clients, and use
nothing of the broker.
"""
