"""Authentication of brokers among each other.

Zone: pure.
"""
