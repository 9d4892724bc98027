"""Who a connection belongs to: authentication of brokers among each other.

Zone: pure.
"""
