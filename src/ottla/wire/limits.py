"""Limits for counts and lengths in messages, checked before memory is allocated for them.

Zone: pure. Numbers only. The listener limits the size of a whole frame (`socket.request.max.bytes`).
"""

from __future__ import annotations

from typing import Final

MAX_ELEMENTS: Final = 1_000_000
"""Most elements of one array (the limit of Kafka 4.4)."""
MAX_TAGS: Final = 10_000
"""Most tagged fields of one struct (the limit of Kafka 4.4)."""
MAX_STRING: Final = 0x7FFF
"""Most bytes of one string, although the compact encoding allows more."""
MAX_LENGTH: Final = 0x7FFF_FFFF
"""Any length, count or tag: an int32 that is not negative."""

AMPLIFICATION: Final = 16
"""Bytes of memory that decoding a request may take per byte of its frame (one of them for the copy of the frame) …"""
BROKER_AMPLIFICATION: Final = 20
"""… the same for requests between brokers, whose structs have many fields …"""
ALLOWANCE: Final = 64 * 1024
"""… and these bytes, which every message may take in addition."""

SLICE: Final = 1024
"""Elements of structs or text that a large request decodes in one slice: 2 ms for the widest of them."""
SLICE_BYTES: Final = 128 * 1024
"""A slice ends after these bytes, too: text that is not UTF-8 takes 20 ns per byte."""
NUMBERS_PER_ELEMENT: Final = 32
"""Numbers or uuids of an array that count as one such element."""
TAGS_PER_ELEMENT: Final = 4
"""Tagged fields, known or not, that count as one such element."""
