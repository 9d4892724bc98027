"""Records that are written with the schemas of a registry.

Zone: real.
"""
