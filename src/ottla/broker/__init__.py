"""The broker: its wiring, the dispatch of requests, and handlers without another home.

Zone: deterministic.
"""
