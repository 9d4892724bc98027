"""Decodes Produce and Fetch requests of many partitions one by one, and encodes Fetch responses in pieces.

Zone: pure. The decoders of `hot_produce` and `hot_fetch` return a list for a whole request. The walks here keep
nothing, so a request can be decoded in slices, and twice: first to check that it is well-formed, then to handle it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from ottla.seams import Part
from ottla.utf8 import decode_text
from ottla.wire.errors import MalformedMessage, fail
from ottla.wire.hot_fetch import Answers, Wanted, encode_fetch
from ottla.wire.limits import MAX_ELEMENTS
from ottla.wire.primitives import read_string_length, read_tag, read_tag_count, read_uvarint, uvarint

T = TypeVar("T")
Entry = tuple[str | bytes, int, memoryview | None]
"""As in `hot_produce`."""
TAGS: Final = 2
"""Number of tags that take as long to read as a partition."""
_int16: Final = struct.Struct(">h").unpack_from
_int32: Final = struct.Struct(">i").unpack_from
_int64: Final = struct.Struct(">q").unpack_from


def read_chunks(items: Iterable[T | None], size: int) -> Iterator[list[T]]:
    """Lists of at most `size` items each; a None counts, but is left out. Raises MalformedMessage."""
    walk = iter(items)
    try:
        while chunk := list(islice(walk, size)):
            yield [item for item in chunk if item is not None]
    except (IndexError, struct.error) as error:
        raise MalformedMessage("a request of many partitions: truncated") from error


class _Reader:
    """A position in a frame."""

    __slots__ = ("flexible", "pos", "tags_per_unit", "view")

    def __init__(self, view: memoryview, pos: int, *, flexible: bool) -> None:
        self.view = view
        self.pos = pos
        self.flexible = flexible
        self.tags_per_unit = TAGS

    def read_number(self, read: struct.Struct) -> int:
        (value,) = read.unpack_from(self.view, self.pos)
        self.pos += read.size
        return int(value)

    def read_count(self, where: str) -> int:
        """The number of elements of an array; null counts as empty."""
        if self.flexible:
            count, self.pos = read_uvarint(self.view, self.pos)
            count = max(0, count - 1)
        else:
            count = max(0, _int32(self.view, self.pos)[0])
            self.pos += 4
        # An element has one byte at least.
        if count > min(MAX_ELEMENTS, len(self.view) - self.pos):
            fail(where, f"{count} elements in {len(self.view) - self.pos} bytes")
        return count

    def read_text(self, where: str) -> str | None:
        if self.flexible:
            size, self.pos = read_string_length(self.view, self.pos)
            size -= 1
        else:
            (size,) = _int16(self.view, self.pos)
            self.pos += 2
        return None if size < 0 else decode_text(self.take_bytes(size, where).tobytes())

    def read_name(self, where: str, *, by_id: bool) -> str | bytes:
        if by_id:
            return self.take_bytes(16, where).tobytes()
        name = self.read_text(where)
        if name is None:
            fail(where, "the name is null")
        return name

    def take_bytes(self, size: int, where: str) -> memoryview:
        end = self.pos + size
        if end > len(self.view):
            fail(where, f"{size} bytes of {len(self.view) - self.pos}")
        piece = self.view[self.pos : end]
        self.pos = end
        return piece

    def read_records(self) -> memoryview | None:
        if self.flexible:
            size, self.pos = read_uvarint(self.view, self.pos)
            size -= 1
        else:
            (size,) = _int32(self.view, self.pos)
            self.pos += 4
        return None if size < 0 else self.take_bytes(size, "ProduceRequest.records")

    def read_tags(self) -> Iterator[tuple[int, int]]:
        """(tag, position of its value) for each tagged field."""
        if not self.flexible:
            return
        count, self.pos = read_tag_count(self.view, self.pos, len(self.view))
        tag = -1
        for _ in range(count):
            tag, begin, self.pos = read_tag(self.view, self.pos, len(self.view), tag)
            yield tag, begin

    def skip_tags(self) -> Iterator[None]:
        """Skip tagged fields. A None for each unit of work: a partition may have 10,000 of them, so slices end here."""
        if not self.skip_empty_tags():
            for number, _ in enumerate(self.read_tags(), 1):
                if not number % self.tags_per_unit:
                    yield None

    def skip_empty_tags(self) -> bool:
        """Skip the section of tagged fields if it is empty. False: it has some, and is not skipped."""
        if not self.flexible:
            return True
        is_empty = self.view[self.pos] == 0
        self.pos += is_empty
        return is_empty


_BYTE: Final = struct.Struct(">b")
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")


class ProduceWalk:
    """A Produce request: decodes its fixed fields at once, its partitions one by one."""

    def __init__(self, version: int, view: memoryview, pos: int) -> None:
        """Raises MalformedMessage."""
        self._version = version
        self._reader = _Reader(view, pos, flexible=version >= 9)
        try:
            self._read_head(version, self._reader)
        except (IndexError, struct.error) as error:
            raise MalformedMessage("ProduceRequest: cut short") from error

    def _read_head(self, version: int, reader: _Reader) -> None:
        self.transactional_id = reader.read_text("ProduceRequest.transactional_id") if version >= 3 else None
        self.acks = reader.read_number(_SHORT)
        self.timeout_ms = reader.read_number(_INT)
        self._body = reader.pos

    def walk_entries(self, tags_per_unit: int = TAGS) -> Iterator[Entry | None]:
        """The partitions; None after work that was not a partition. Iterate by `read_chunks`.

        `tags_per_unit`: how many tags cost the caller as much time as a partition.
        """
        reader = self._reader
        reader.pos, reader.tags_per_unit = self._body, tags_per_unit
        for _ in range(reader.read_count("ProduceRequest.topic_data")):
            name = reader.read_name("ProduceRequest.topic_data.name", by_id=self._version >= 13)
            yield None
            for _ in range(reader.read_count("ProduceRequest.partition_data")):
                index = reader.read_number(_INT)
                records = reader.read_records()
                if not reader.skip_empty_tags():
                    yield from reader.skip_tags()
                yield name, index, records
            yield from reader.skip_tags()
        yield from reader.skip_tags()


def has_many_entries(version: int, view: memoryview, pos: int, most: int) -> bool:
    """Whether a Produce request has more than `most` topics and partitions; False if it is truncated before that."""
    try:
        entries = ProduceWalk(version, view, pos).walk_entries()
        return sum(1 for _ in islice(entries, most + 1)) > most
    except (IndexError, struct.error, MalformedMessage):
        return False


_FETCH_ROWS: Final = (">iqi", ">iqqi", ">iiqqi", ">iiqiqix")
"""The layout of a partition of a Fetch request from version 0, 5, 9 and 12 on; the last one ends with a tag count."""


class FetchWalk:
    """A Fetch request: decodes its first fields at once; then `walk_runs`, `walk_forgotten` and the last fields, in
    order."""

    def __init__(self, version: int, view: memoryview, pos: int) -> None:
        """Raises MalformedMessage."""
        self._version = version
        self._reader = _Reader(view, pos, flexible=version >= 12)
        self._row = struct.Struct(_FETCH_ROWS[(version >= 5) + (version >= 9) + (version >= 12)])
        try:
            self._read_head(version, self._reader)
        except (IndexError, struct.error) as error:
            raise MalformedMessage("FetchRequest: cut short") from error

    def _read_head(self, version: int, reader: _Reader) -> None:
        self.replica_id = reader.read_number(_INT) if version < 15 else -1
        self.max_wait_ms = reader.read_number(_INT)
        self.min_bytes = reader.read_number(_INT)
        self.max_bytes = reader.read_number(_INT) if version >= 3 else 0x7FFFFFFF
        self.isolation_level = reader.read_number(_BYTE) if version >= 4 else 0
        self.session_id = reader.read_number(_INT) if version >= 7 else 0
        self.session_epoch = reader.read_number(_INT) if version >= 7 else -1
        self.rack_id = ""
        self.replica_epoch = -1

    def walk_runs(self, size: int) -> Iterator[list[Wanted]]:
        """Lists of at most `size` partitions of one topic; empty ones for other work. Raises MalformedMessage."""
        try:
            yield from self._walk_topics(size)
        except (IndexError, struct.error) as error:
            raise MalformedMessage("FetchRequest: cut short") from error

    def _walk_topics(self, size: int) -> Iterator[list[Wanted]]:
        reader = self._reader
        for _ in range(reader.read_count("FetchRequest.topics")):
            name = reader.read_name("FetchRequest.topics.topic", by_id=self._version >= 13)
            yield []
            left = reader.read_count("FetchRequest.partitions")
            while left:
                run = self._read_run(name, min(left, size))
                if run:
                    yield run
                else:
                    yield from self._one_by_one(name, min(left, size))
                left -= min(left, size)
            yield from ([] for _ in reader.skip_tags())

    def _read_run(self, name: str | bytes, count: int) -> list[Wanted]:
        """Decode `count` partitions at once; returns none if one of them has tags."""
        reader, row, version = self._reader, self._row, self._version
        end = reader.pos + row.size * count
        if end > len(reader.view):
            fail("FetchRequest.partitions", f"{row.size * count} bytes of {len(reader.view) - reader.pos}")
        rows = reader.view[reader.pos : end]
        if version >= 12:
            # The last byte of a row is its number of tags: one slice with a step checks it in all rows.
            if rows[row.size - 1 :: row.size].tobytes().strip(b"\0"):
                return []
            wanted = [(name, *each) for each in row.iter_unpack(rows)]
        elif version >= 9:
            wanted = [
                (name, each, epoch, at, -1, start, most) for each, epoch, at, start, most in row.iter_unpack(rows)
            ]
        elif version >= 5:
            wanted = [(name, each, -1, at, -1, start, most) for each, at, start, most in row.iter_unpack(rows)]
        else:
            wanted = [(name, each, -1, at, -1, -1, most) for each, at, most in row.iter_unpack(rows)]
        reader.pos = end
        return wanted

    def _one_by_one(self, name: str | bytes, count: int) -> Iterator[list[Wanted]]:
        """Decode partitions with tags (from version 12 on) one by one."""
        reader = self._reader
        for _ in range(count):
            (row,) = self._row.iter_unpack(reader.take_bytes(self._row.size, "FetchRequest.partitions"))
            # The layout ends with the number of tags, which `skip_tags` reads as well.
            reader.pos -= 1
            yield from ([] for _ in reader.skip_tags())
            yield [(name, *row)]

    def walk_forgotten(self) -> Iterator[tuple[str | bytes, int] | None]:
        """The forgotten partitions. Iterate after `walk_runs`, by `read_chunks`; sets the last fields at its end."""
        reader, version = self._reader, self._version
        for _ in range(reader.read_count("FetchRequest.forgotten_topics_data") if version >= 7 else 0):
            name = reader.read_name("FetchRequest.forgotten_topics_data.topic", by_id=version >= 13)
            yield None
            for _ in range(reader.read_count("FetchRequest.forgotten_topics_data.partitions")):
                yield name, reader.read_number(_INT)
            yield from reader.skip_tags()
        if version >= 11:
            self.rack_id = reader.read_text("FetchRequest.rack_id") or ""
        for tag, begin in reader.read_tags():
            if tag == 1 and version >= 15:
                (self.replica_id,) = _int32(reader.view, begin)
                (self.replica_epoch,) = _int64(reader.view, begin + 4)


class FetchPieces:
    """The body of a Fetch response, built of encoded pieces in the order of their arrival."""

    def __init__(self, version: int) -> None:
        self._encode = encode_fetch(version)
        self._flexible = version >= 12
        self._empty = len(b"".join(self._encode_topics([], 0)))
        self._topics = 0
        self._parts: list[Part] = []

    def _encode_topics(self, topics: Answers, session_id: int) -> list[bytes]:
        return [bytes(part) for part in self._encode(topics, 0, 0, session_id)]  # type: ignore[arg-type]  # no Region

    def add_topics(self, topics: Answers) -> None:
        """Encode topics, and keep the bytes."""
        if topics:
            self.add_encoded(self._encode(topics, 0, 0, 0), len(topics))

    def add_encoded(self, parts: list[Part], topics: int) -> None:
        """Keep the bytes between head and tail of an encoded body, and count its topics."""
        self._topics += topics
        # The head of a flexible body: throttle time i32 | error i16 | session id i32 | number of topics.
        before = 10 + len(uvarint(topics + 1)) if self._flexible else self._empty
        first = parts[0]
        assert isinstance(first, bytes), "the head is written"
        parts[0] = first[before:]
        if self._flexible:
            last = parts[-1]
            assert isinstance(last, bytes), "the tail is written"
            parts[-1] = last[:-1]
        self._parts += parts

    def add_pieces(self, other: FetchPieces) -> None:
        """Append the pieces of another response of this version."""
        self._topics += other._topics
        self._parts += other._parts

    def body_parts(self, session_id: int, tail: bytes = b"\0") -> list[Part]:
        """The whole body; `tail`: the tags of the response, from version 12 on."""
        empty = b"".join(self._encode_topics([], session_id))
        if self._flexible:
            return [empty[:10] + uvarint(self._topics + 1), *self._parts, tail]
        return [empty[:-4] + self._topics.to_bytes(4, "big"), *self._parts]
