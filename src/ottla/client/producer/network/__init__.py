"""The network side of the producer: its thread, its requests, and its non-blocking connections.

Zone: real.
"""
