"""Values that contain their producer and number, and the files in which clients note records.

Zone: real. ChaosClient.java has the same layout. A value is producer (1 byte), number (8 bytes), CRC-32 of the rest (4
bytes), padding whose length depends on the number.

Two files are kept. A producer's *fate*: one byte per number, 0 not known, 1 acknowledged, 2 failed. A consumer's
*notes*: one row of (partition, offset, producer, number) per record, as it came.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

HEAD = struct.Struct(">BQI")
NOTE = struct.Struct(">iqiq")
NOTES = np.dtype([("partition", ">i4"), ("offset", ">i8"), ("producer", ">i4"), ("number", ">i8")])
UNKNOWN, ACKNOWLEDGED, FAILED = 0, 1, 2
STEPS = 200
"""Paddings have from 0 to STEPS - 1 bytes."""


def value(producer: int, number: int) -> bytes:
    """The value of a producer's record."""
    padding = bytes([number & 0xFF]) * (number % STEPS)
    return HEAD.pack(producer, number, _checksum(producer, number, padding)) + padding


def _checksum(producer: int, number: int, padding: bytes) -> int:
    return zlib.crc32(padding, zlib.crc32(struct.pack(">BQ", producer, number)))


def parse(found: bytes) -> tuple[int, int]:
    """(producer, number) of a value. Raises ValueError for bytes that no producer wrote."""
    if len(found) < HEAD.size:
        raise ValueError(f"a value of {len(found)} bytes")
    producer, number, checksum = HEAD.unpack_from(found)
    if checksum != zlib.crc32(found[HEAD.size :], zlib.crc32(found[:9])):
        raise ValueError(f"record {number} of producer {producer} has a wrong byte")
    return producer, number
