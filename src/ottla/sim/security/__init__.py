"""Runs of a cluster with an authorizer: clients log in, and an administrator changes what they may do.

Zone: deterministic.
"""
