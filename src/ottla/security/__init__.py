"""Who a connection is, what it may do, how much of it.

Zone: pure.
"""
