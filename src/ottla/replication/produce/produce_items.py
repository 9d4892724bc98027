"""The items of a Produce request: one partition and its records each, or why an earlier step refused the records.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind
from ottla.wire import hot

BATCH_VERSION: Final = 3
"""From this version of Produce on records are batches of format v2."""
ZSTD_VERSION: Final = 7
"""From this version on batches may be compressed with zstd."""
IN_TURN: Final = 8
"""Small batches of a request that a step handles within a turn, a millisecond each; a worker gets the next one."""
CODEC_POS: Final = 22
CODEC_MASK: Final = 0x07
_ZSTD: Final = 4

BatchItem = tuple[str | bytes, int, "memoryview | RefusedBatch | None"]
"""(topic name, or id from version 13 on; partition; records, or why an earlier step refused them)."""
DecodedProduce = tuple[str | None, int, int, Sequence[BatchItem]]
"""(transactional id, acks, timeout in ms, items)."""


class RefusedBatch:
    """Takes the place of records that were refused before their append. It is false, as missing records are, so the
    hot path needs no further test."""

    __slots__ = ("error",)

    def __init__(self, error: ApiError) -> None:
        self.error = error

    def __bool__(self) -> bool:
        return False


class DeniedBatch(RefusedBatch):
    """Records that the client may not write. Its error comes before all others, which would disclose something."""

    __slots__ = ()


NO_MESSAGES: Final = RefusedBatch(ApiError(ErrorCode.INVALID_RECORD, "a message set without messages"))
"""Marks an empty message set: old brokers accepted it and wrote nothing."""


def refuse_item(items: list[BatchItem], at: int, error: ApiError) -> None:
    """Let an error take the place of the records of an item."""
    name, index, _ = items[at]
    items[at] = (name, index, RefusedBatch(error))


def replace_records(items: list[BatchItem], at: int, content: bytes) -> memoryview:
    """Let a batch that was made of the records of an item take their place. Returns it, writable."""
    name, index, _ = items[at]
    batch = memoryview(bytearray(content))
    items[at] = (name, index, batch)
    return batch


def decoder_for(version: int) -> Callable[[memoryview, int], DecodedProduce]:
    """The decoder of requests of a version. Batches with zstd are refused in versions that do not know it (KIP-110)."""
    decode = hot.decode_produce(version)
    if not BATCH_VERSION <= version < ZSTD_VERSION:
        return decode

    def decode_older(frame: memoryview, pos: int) -> DecodedProduce:
        transactional_id, acks, timeout_ms, items = decode(frame, pos)
        return transactional_id, acks, timeout_ms, without_zstd(items)

    return decode_older


def without_zstd(items: Sequence[BatchItem]) -> list[BatchItem]:
    """The items with zstd batches refused."""
    return [(name, index, _unless_zstd(records)) for name, index, records in items]


def _unless_zstd(records: memoryview | RefusedBatch | None) -> memoryview | RefusedBatch | None:
    if isinstance(records, memoryview) and len(records) > CODEC_POS and records[CODEC_POS] & CODEC_MASK == _ZSTD:
        return RefusedBatch(
            ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "this version of Produce does not support zstd")
        )
    return records


def job_error(result: object, what: str) -> ApiError:
    """The error for a failed job. A job that needed too much time or memory will do so again: INVALID_RECORD, on which
    producers do not retry."""
    hopeless = isinstance(result, Failure) and result.kind in (Kind.TIMEOUT, Kind.FULL)
    return ApiError(ErrorCode.INVALID_RECORD if hopeless else ErrorCode.CORRUPT_MESSAGE, f"{what}: {result}")
