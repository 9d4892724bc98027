"""The producer's network side: its thread, requests, connections that never block.

Zone: real.
"""
