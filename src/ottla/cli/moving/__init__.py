"""Moves records out of topics and into topics: copies, exports, imports.

Zone: pure.
"""
