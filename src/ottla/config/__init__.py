"""Configuration: one row per key with its name, type, default, scope, documentation and synonyms.

Zone: pure.
"""
