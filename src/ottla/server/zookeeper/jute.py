"""Jute, the encoding of ZooKeeper's protocol: encodes and decodes values and records.

Zone: pure. Field types only; `records` has the records.

    int i32 · long i64 · bool i8 · buffer: i32 length (-1: null) and its bytes · text: a buffer of UTF-8
    vector: i32 count (-1: null) and its elements · ACL: i32 permissions, text scheme, text id
    stat: czxid mzxid ctime mtime i64 · version cversion aversion i32 · owner i64 · data length, children i32 ·
    pzxid i64
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_STAT: Final = Struct(">qqqqiiiqiiq")


class BadMessage(Exception):
    """Bytes that no ZooKeeper client sends; the connection has to be closed."""


class Acl(NamedTuple):
    """A permission for a node: which identity may do what."""

    permissions: int
    scheme: str
    id: str


class Stat(NamedTuple):
    """ZooKeeper's bookkeeping of a node. Times in ms since 1970; `owner`: the session of an ephemeral node, else 0."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    data_length: int
    children: int
    pzxid: int


Value = int | bool | bytes | str | Sequence[str] | Sequence[Acl] | Stat | None
"""The value of a field."""


class Reader:
    """Decodes the values of a message, one after the other. Every method raises BadMessage when bytes are missing."""

    __slots__ = ("_data", "_pos")

    def __init__(self, data: bytes, pos: int = 0) -> None:
        self._data = data
        self._pos = pos

    @property
    def left(self) -> int:
        """Bytes that are not decoded yet."""
        return len(self._data) - self._pos

    def check_end(self) -> None:
        """Raise BadMessage when bytes are left."""
        if self.left:
            raise BadMessage(f"{self.left} bytes too many")

    def read_int32(self) -> int:
        """A signed number of 32 bits."""
        value: int = _INT.unpack_from(self._data, self._advance(4))[0]
        return value

    def read_int64(self) -> int:
        """A signed number of 64 bits."""
        value: int = _LONG.unpack_from(self._data, self._advance(8))[0]
        return value

    def read_flag(self) -> bool:
        """One byte; anything but zero is true."""
        return self._data[self._advance(1)] != 0

    def read_buffer(self) -> bytes | None:
        """Bytes after their length."""
        size = self.read_int32()
        if size < -1:
            raise BadMessage(f"a buffer of {size} bytes")
        if size == -1:
            return None
        start = self._advance(size)
        return self._data[start : start + size]

    def read_text(self) -> str:
        """UTF-8 after its length; null is an empty text, as some clients send it."""
        try:
            return (self.read_buffer() or b"").decode()
        except UnicodeDecodeError:
            raise BadMessage("a text is not UTF-8") from None

    def read_texts(self) -> list[str]:
        """A vector of texts."""
        return [self.read_text() for _ in range(self._read_count(4))]

    def read_acls(self) -> list[Acl]:
        """A vector of ACLs."""
        return [Acl(self.read_int32(), self.read_text(), self.read_text()) for _ in range(self._read_count(12))]

    def read_stat(self) -> Stat:
        """A node's bookkeeping."""
        return Stat._make(_STAT.unpack_from(self._data, self._advance(_STAT.size)))

    def _read_count(self, least: int) -> int:
        """The count of a vector whose elements have at least `least` bytes: memory is never allocated for a count that
        the message cannot hold."""
        count = self.read_int32()
        # A hostile length costs one comparison, not an allocation.
        if count < -1 or count * least > self.left:
            raise BadMessage(f"a vector of {count} elements in {self.left} bytes")
        return max(count, 0)

    def _advance(self, size: int) -> int:
        start = self._pos
        if size > len(self._data) - start:
            raise BadMessage(f"{size} bytes wanted, {len(self._data) - start} are left")
        self._pos = start + size
        return start


def read_fields(types: str, reader: Reader) -> list[Value]:
    """Decode the fields of a record; one letter per type: i q b d(ata) t(ext) T(exts) A(cls) s(tat)."""
    return [_READ[letter](reader) for letter in types]


def write_fields(types: str, values: Sequence[Value]) -> bytes:
    """Encode a record; `types` as in `read_fields`. A value of a wrong type is a defect of the caller."""
    assert len(types) == len(values), f"{len(values)} values for {types!r}"
    return b"".join([_WRITE[letter](value) for letter, value in zip(types, values, strict=True)])


def _encode_buffer(value: Value) -> bytes:
    if value is None:
        return b"\xff\xff\xff\xff"
    assert isinstance(value, bytes)
    return _INT.pack(len(value)) + value


def _encode_text(value: Value) -> bytes:
    assert isinstance(value, str)
    return _encode_buffer(value.encode())


def _encode_texts(value: Value) -> bytes:
    assert isinstance(value, Sequence)
    return _INT.pack(len(value)) + b"".join([_encode_text(element) for element in value if isinstance(element, str)])


def _encode_acls(value: Value) -> bytes:
    assert isinstance(value, Sequence)
    acls = [element for element in value if isinstance(element, Acl)]
    return _INT.pack(len(acls)) + b"".join([write_fields("itt", acl) for acl in acls])


def _encode_stat(value: Value) -> bytes:
    assert isinstance(value, Stat)
    return _STAT.pack(*value)


_READ: Final = {
    "i": Reader.read_int32,
    "q": Reader.read_int64,
    "b": Reader.read_flag,
    "d": Reader.read_buffer,
    "t": Reader.read_text,
    "T": Reader.read_texts,
    "A": Reader.read_acls,
    "s": Reader.read_stat,
}
_WRITE: Final = {
    "i": _INT.pack,
    "q": _LONG.pack,
    "b": Struct(">?").pack,
    "d": _encode_buffer,
    "t": _encode_text,
    "T": _encode_texts,
    "A": _encode_acls,
    "s": _encode_stat,
}
