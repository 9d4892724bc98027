"""One row per config key: name, type, default, scope, doc, synonyms.

Zone: pure.
"""
