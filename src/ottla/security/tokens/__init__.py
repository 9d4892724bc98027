"""Delegation tokens (KIP-48): what exists, logins with them, and the requests about them.

Zone: deterministic.
"""
