"""The controller: the one broker that elects leaders, creates and deletes topics, and informs all other brokers.

Zone: deterministic.
"""
