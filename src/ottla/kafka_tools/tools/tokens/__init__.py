"""Delegation tokens.

Zone: pure. This module is only the name.
"""
