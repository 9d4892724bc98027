"""Produce: from the request to the append and the response.

Zone: deterministic.
"""
