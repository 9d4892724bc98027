"""What a message may claim before the claim is believed.

Zone: pure. Numbers only. The size of a whole frame is the listener's limit (`socket.request.max.bytes`), not ours.
"""

from __future__ import annotations

from typing import Final

MAX_ELEMENTS: Final = 1_000_000
"""Elements of one array (the cap of Kafka 4.4's readers)."""
MAX_TAGS: Final = 10_000
"""Tagged fields of one struct (the cap of Kafka 4.4's readers)."""
MAX_STRING: Final = 0x7FFF
"""Bytes of one string, also where the compact encoding could say more."""
MAX_LENGTH: Final = 0x7FFF_FFFF
"""Any length, count or tag: an int32 that is not negative."""

AMPLIFICATION: Final = 16
"""Bytes of memory that decoding a request may take per byte of its frame (one of them for the copy of the frame) …"""
BROKER_AMPLIFICATION: Final = 20
"""… the same for requests that brokers send each other, whose structs are wide …"""
ALLOWANCE: Final = 64 * 1024
"""… beyond this many bytes, which every message gets."""

SLICE: Final = 1024
"""Elements of structs or text that a large request decodes in one slice: 2 ms for the widest of them."""
