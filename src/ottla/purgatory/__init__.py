"""Delayed operations and their timers (Kafka's purgatory and timing wheel).

Zone: deterministic.
"""
