"""Which records of a retry topic's partition still wait: what a group's committed position says, and its metadata.

Zone: pure. A group commits one offset per partition; records that come due out of order need more. The position is the
first record that waits; behind it, the metadata of the commit (4,096 bytes in Kafka, `offset.metadata.max.bytes`) says
which records were handed over already, as lengths of runs. Both are one commit in the transaction that hands over, so
that there is no moment in which one is known without the other. When the runs become too many, those who wait in the
shortest ones are to be written to the end of the topic again, in the same transaction: `crowded` says which.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

MAX_TEXT: Final = 4_000
"""Characters of metadata; below Kafka's 4,096 bytes."""
_MANY: Final = MAX_TEXT * 3 // 4 * 2 // 3
"""Bytes of runs from which on there are too many: two thirds of what fits. A hand-over adds a third at most."""
_FEW: Final = _MANY // 2
MAX_SPAN: Final = 64 * 2**20
"""Offsets between the first record that waits and the last one that was read: a byte of memory each."""
_PLAIN, _DENSE = "r", "z"
_TRIM: Final = 65_536


class Window:
    """The partition from the first record that waits to the last one that was read."""

    __slots__ = ("_base", "_handed", "_handed_end", "_states", "low", "waiting")

    def __init__(self, low: int, handed: Iterable[tuple[int, int]] = ()) -> None:
        """low: the committed position. handed: runs (first, end) behind it that were handed over before."""
        self.low = low
        """The first offset that waits; if none does, the end."""
        self._base = low
        self._states = bytearray()
        """A byte per offset from `_base` on: 1 it waits."""
        self.waiting = 0
        self._handed = bytearray()
        for first, end in handed:
            self._handed.extend(bytes(first - low - len(self._handed)) + b"\1" * (end - first))
        self._handed_end = low + len(self._handed)

    @property
    def end(self) -> int:
        """The next offset to read."""
        return self._base + len(self._states)

    def was_handed(self, offset: int) -> bool:
        """Whether a former run handed it over."""
        first = self._handed_end - len(self._handed)
        return first <= offset < self._handed_end and self._handed[offset - first] == 1

    def read(self, offset: int) -> bool:
        """A record was read: it waits from now on. False: it was handed over before, or was read already."""
        if offset < self.end:
            return False
        self.passed(offset)
        is_new = not self.was_handed(offset)
        self._states.append(is_new)
        self.waiting += is_new
        self._advance()
        return is_new

    def passed(self, position: int) -> None:
        """All below this offset was read; what was no record waits for nothing. Raises OverflowError past MAX_SPAN."""
        gap = position - self.end
        if gap <= 0:
            return
        if self.waiting == 0:
            self._base, self._states = position, bytearray()
        elif position - self.low > MAX_SPAN:
            raise OverflowError(position)
        else:
            self._states.extend(bytes(gap))
        self._advance()

    def waits(self, offset: int) -> bool:
        """Whether it was read and waits."""
        return self.low <= offset < self.end and self._states[offset - self._base] == 1

    def hand(self, offsets: Iterable[int]) -> None:
        """These are handed over in the transaction that is open; each of them waits."""
        for offset in offsets:
            assert self.waits(offset), offset
            self._states[offset - self._base] = 0
            self.waiting -= 1

    def take_back(self, offsets: Iterable[int]) -> None:
        """The transaction was aborted: they wait again."""
        for offset in offsets:
            assert self._states[offset - self._base] == 0
            self._states[offset - self._base] = 1
            self.waiting += 1

    def settle(self) -> None:
        """The transaction was committed."""
        self._advance()

    def position(self) -> tuple[int, str]:
        """What to commit: the first offset that waits, and the runs behind it."""
        first = self._states.find(1, max(0, self.low - self._base))
        assert self.is_ready, "what a former run handed over would be forgotten"
        if first < 0:
            return self.end, ""
        return self._base + first, packed(self._runs(first))

    def crowded(self, limit: int = 5_000) -> list[int]:
        """Offsets that wait between those that were handed over, when there are too many runs to be committed: without
        them there are few. At most `limit`; empty: there is no need."""
        first = self._states.find(1, max(0, self.low - self._base))
        if first < 0 or len(_varints(self._runs(first))) <= _MANY:
            return []
        runs = sorted(self._waiting_runs(first), key=lambda run: run[1] - run[0])
        found: list[int] = []
        bytes_left = len(_varints(self._runs(first)))
        for start, stop in runs:
            if bytes_left <= _FEW or len(found) + stop - start > limit:
                break
            found.extend(range(self._base + start, self._base + stop))
            bytes_left -= 2
        return sorted(found)

    @property
    def is_ready(self) -> bool:
        """Whether all has been read that a former run handed over: before that nothing can be committed."""
        return self.end >= self._handed_end

    @property
    def known_end(self) -> int:
        """Behind the last record that is known to have been read, by this run or a former one."""
        return max(self.end, self._handed_end)

    def _runs(self, first: int) -> Iterator[int]:
        """Lengths from `first` on, in turn: so many wait, so many were handed over. Ends with the latter."""
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

    def _advance(self) -> None:
        at = self._states.find(1, max(0, self.low - self._base))
        self.low = self.end if at < 0 else self._base + at
        if self.low - self._base > _TRIM:
            del self._states[: self.low - self._base]
            self._base = self.low
        if self._handed and self.is_ready:
            self._handed, self._handed_end = bytearray(), 0


# -- the text of a commit ----------------------------------------------------------------------------------------------


def packed(runs: Iterable[int]) -> str:
    """Lengths as text for the metadata of a commit."""
    raw = _varints(runs)
    if not raw:
        return ""
    dense = zlib.compress(raw, 6)
    kind, data = (_DENSE, dense) if len(dense) < len(raw) else (_PLAIN, raw)
    return kind + base64.b64encode(data).decode()


def unpacked(text: str, low: int) -> list[tuple[int, int]]:
    """The runs (first, end) that were handed over. Raises ValueError for a text that `packed` did not write."""
    if not text:
        return []
    kind = text[0]
    try:
        data = base64.b64decode(text[1:], validate=True)
        if kind == _DENSE:
            inflating = zlib.decompressobj()
            data = inflating.decompress(data, 65_536)
            if not inflating.eof:
                raise ValueError("it is too long, or cut off")
        elif kind != _PLAIN:
            raise ValueError(f"it begins with {kind!r}")
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from error
    lengths = _from_varints(data)
    if len(lengths) % 2 or sum(lengths) > MAX_SPAN or 0 in lengths:
        raise ValueError("its runs make no sense")
    found, at = [], low
    for waits, handed in zip(lengths[::2], lengths[1::2], strict=True):
        found.append((at + waits, at + waits + handed))
        at += waits + handed
    return found


def _varints(numbers: Iterable[int]) -> bytes:
    found = bytearray()
    for each in numbers:
        number = each
        while number > 127:
            found.append(number & 127 | 128)
            number >>= 7
        found.append(number)
    return bytes(found)


def _from_varints(data: bytes) -> list[int]:
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
