"""Which records of a retry topic's partition still wait: a group's committed position with its metadata.

Zone: pure. A group commits one offset per partition, which is not enough for records that are due in another order. The
position is the first waiting record. The metadata of the commit (4,096 bytes in Kafka, `offset.metadata.max.bytes`)
contain which later records were forwarded already, as lengths of runs. Both are one commit, in the transaction that
forwards, so that they always agree. When there are too many runs, the waiting records in the shortest ones are written
again to the end of the topic, in the same transaction: `offsets_to_rewrite` chooses them.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

MAX_TEXT: Final = 4_000
"""Characters of metadata; below Kafka's 4,096 bytes."""
# Base64 makes four characters of three bytes, so three quarters of the text are bytes of runs.
_MANY: Final = MAX_TEXT * 3 // 4 * 2 // 3
"""Too many bytes of runs: two thirds of what fits, because a transaction adds a third at most."""
_FEW: Final = _MANY // 2
MAX_SPAN: Final = 64 * 2**20
"""The most offsets between the first waiting record and the last one read: a byte of memory each."""
_PLAIN, _DENSE = "r", "z"
_TRIM: Final = 65_536


class Window:
    """A partition from its first waiting record to the last one that was read."""

    __slots__ = ("_base", "_handed", "_handed_end", "_states", "low", "waiting")

    def __init__(self, low: int, handed: Iterable[tuple[int, int]] = ()) -> None:
        """low: the committed position. handed: runs (first, end) after it that were forwarded before."""
        self.low = low
        """The first waiting offset; without any, the end."""
        self._base = low
        self._states = bytearray()
        """A byte per offset from `_base` on; 1: the record waits."""
        self.waiting = 0
        self._handed = bytearray()
        for first, end in handed:
            self._handed.extend(bytes(first - low - len(self._handed)) + b"\1" * (end - first))
        self._handed_end = low + len(self._handed)

    @property
    def end(self) -> int:
        """The next offset to read."""
        return self._base + len(self._states)

    def was_forwarded(self, offset: int) -> bool:
        """Whether an earlier run of the service forwarded the record."""
        first = self._handed_end - len(self._handed)
        return first <= offset < self._handed_end and self._handed[offset - first] == 1

    def add_read(self, offset: int) -> bool:
        """Add a record that was read and now waits. False: it was forwarded before, or read already."""
        if offset < self.end:
            return False
        self.advance_end(offset)
        # A record that was forwarded keeps its byte, 0, so that it stays a part of the runs.
        is_new = not self.was_forwarded(offset)
        self._states.append(is_new)
        self.waiting += is_new
        self._advance_low()
        return is_new

    def advance_end(self, position: int) -> None:
        """Note that all below this offset was read, also gaps without records. Raises OverflowError past MAX_SPAN."""
        gap = position - self.end
        if gap <= 0:
            return
        if self.waiting == 0:
            self._base, self._states = position, bytearray()
        elif position - self.low > MAX_SPAN:
            raise OverflowError(position)
        else:
            # Offsets without records (compaction, transaction markers) count as forwarded: they never hold the position
            # back.
            self._states.extend(bytes(gap))
        self._advance_low()

    def is_waiting(self, offset: int) -> bool:
        """Whether the record at this offset was read, and waits."""
        return self.low <= offset < self.end and self._states[offset - self._base] == 1

    def mark_forwarded(self, offsets: Iterable[int]) -> None:
        """Mark waiting records as forwarded in the open transaction."""
        for offset in offsets:
            assert self.is_waiting(offset), offset
            self._states[offset - self._base] = 0
            self.waiting -= 1

    def mark_waiting(self, offsets: Iterable[int]) -> None:
        """Mark records as waiting again, after the transaction was aborted."""
        for offset in offsets:
            assert self._states[offset - self._base] == 0
            self._states[offset - self._base] = 1
            self.waiting += 1

    def on_committed(self) -> None:
        """Advance the position, after the transaction was committed."""
        self._advance_low()

    def commit_position(self) -> tuple[int, str]:
        """The position to commit: the first waiting offset, and the text of the runs after it."""
        first = self._states.find(1, max(0, self.low - self._base))
        assert self.is_ready, "records that an earlier run forwarded would be lost from the metadata"
        if first < 0:
            return self.end, ""
        return self._base + first, pack_runs(self._run_lengths(first))

    def offsets_to_rewrite(self, limit: int = 5_000) -> list[int]:
        """When there are too many runs for the metadata: the waiting offsets to rewrite, so that few runs remain.

        At most `limit`; empty when there is no need.
        """
        first = self._states.find(1, max(0, self.low - self._base))
        if first < 0 or len(_encode_varints(self._run_lengths(first))) <= _MANY:
            return []
        # The shortest runs first: they cost the fewest rewritten records for the bytes that they save.
        runs = sorted(self._waiting_runs(first), key=lambda run: run[1] - run[0])
        found: list[int] = []
        bytes_left = len(_encode_varints(self._run_lengths(first)))
        for start, stop in runs:
            if bytes_left <= _FEW or len(found) + stop - start > limit:
                break
            found.extend(range(self._base + start, self._base + stop))
            # A rewritten run merges with the forwarded runs on both sides: two lengths, of a byte or more, disappear.
            bytes_left -= 2
        return sorted(found)

    @property
    def is_ready(self) -> bool:
        """Whether all records that an earlier run forwarded were read; before that no position can be committed."""
        return self.end >= self._handed_end

    @property
    def known_end(self) -> int:
        """The offset after the last record that this run or an earlier one has read."""
        return max(self.end, self._handed_end)

    def _run_lengths(self, first: int) -> Iterator[int]:
        """Lengths of runs from `first` on, alternately waiting and forwarded; the last one is forwarded."""
        states, at = self._states, first
        while (gap := states.find(0, at)) >= 0:
            more = states.find(1, gap)
            more = len(states) if more < 0 else more
            yield gap - at
            yield more - gap
            at = more

    def _waiting_runs(self, first: int) -> Iterator[tuple[int, int]]:
        states, at = self._states, first
        while at >= 0 and (gap := states.find(0, at)) >= 0:
            yield at, gap
            at = states.find(1, gap)

    def _advance_low(self) -> None:
        at = self._states.find(1, max(0, self.low - self._base))
        self.low = self.end if at < 0 else self._base + at
        if self.low - self._base > _TRIM:
            del self._states[: self.low - self._base]
            self._base = self.low
        if self._handed and self.is_ready:
            # Everything that an earlier run forwarded was read: from here on `_states` has it.
            self._handed, self._handed_end = bytearray(), 0


# -- the text of a commit ----------------------------------------------------------------------------------------------


def pack_runs(runs: Iterable[int]) -> str:
    """The text of run lengths for the metadata of a commit."""
    raw = _encode_varints(runs)
    if not raw:
        return ""
    dense = zlib.compress(raw, 6)
    kind, data = (_DENSE, dense) if len(dense) < len(raw) else (_PLAIN, raw)
    return kind + base64.b64encode(data).decode()


def unpack_runs(text: str, low: int) -> list[tuple[int, int]]:
    """The forwarded runs (first, end). Raises ValueError for a text that `pack_runs` did not write."""
    if not text:
        return []
    kind = text[0]
    try:
        data = base64.b64decode(text[1:], validate=True)
        if kind == _DENSE:
            inflating = zlib.decompressobj()
            # Any client may commit metadata for the group, and a few bytes of zlib can become gigabytes.
            data = inflating.decompress(data, 65_536)
            if not inflating.eof:
                raise ValueError("it is too long, or cut off")
        elif kind != _PLAIN:
            raise ValueError(f"it begins with {kind!r}")
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from error
    lengths = _decode_varints(data)
    if len(lengths) % 2 or sum(lengths) > MAX_SPAN or 0 in lengths:
        raise ValueError("its runs are invalid")
    found, at = [], low
    for waits, handed in zip(lengths[::2], lengths[1::2], strict=True):
        found.append((at + waits, at + waits + handed))
        at += waits + handed
    return found


def _encode_varints(numbers: Iterable[int]) -> bytes:
    found = bytearray()
    for each in numbers:
        number = each
        while number > 127:
            found.append(number & 127 | 128)
            number >>= 7
        found.append(number)
    return bytes(found)


def _decode_varints(data: bytes) -> list[int]:
    found, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(number)
            number = shift = 0
        elif shift > 35:
            raise ValueError("a number is too long")
    if shift:
        raise ValueError("it is cut off")
    return found
