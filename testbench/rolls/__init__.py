"""A cluster rolled to another release and back, under clients, with kills.

Zone: real.
"""
