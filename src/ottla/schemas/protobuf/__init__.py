"""Protobuf schemas: parsing texts of .proto files, compatibility, and decoding of messages.

Zone: pure. The package protobuf is imported when the first schema is parsed: without it, other types still work.
"""
