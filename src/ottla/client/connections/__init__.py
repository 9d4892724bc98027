"""Connections to brokers: addresses, one connection, a pool of them.

Zone: real.
"""
