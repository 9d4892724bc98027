"""Wire protocol clients that use transactions and groups in a simulated cluster, and the properties they must keep.

Zone: deterministic.
"""
