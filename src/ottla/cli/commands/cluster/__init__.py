"""Commands about brokers and the places of replicas.

Zone: real.
"""
