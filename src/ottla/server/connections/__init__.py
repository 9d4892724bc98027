"""Connections: clients' requests in, responses out, and requests to other brokers.

Zone: real.
"""
