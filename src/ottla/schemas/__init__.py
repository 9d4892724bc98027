"""Schemas of records: parsing, and whether one schema can read what another one wrote.

Zone: pure. Needs the extra `schemas`.
"""
