"""TLS of the broker's connections, accepted and outgoing.

Zone: real.
"""
