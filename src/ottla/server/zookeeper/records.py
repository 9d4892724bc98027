"""The messages of ZooKeeper's client protocol, as clients of 3.4 to 3.9 speak it.

Zone: pure. Names, numbers and fields are ZooKeeper's; `znode_ops` carries out the requests.

A message is an i32 length and a record. The first of a connection is Connect; every later request is
`xid i32 · op i32 · record`, every answer `xid i32 · zxid i64 · error i32 · record`. Some xids are reserved: -1 is the
notice of a watch, -2 a ping, -4 an authentication, -8 the watches that a client renews.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

from ottla.server.zookeeper.jute import Acl, BadMessage, Reader, Value, read_fields, write_fields
from ottla.znodes.tree import EventKind


class OpCode(IntEnum):
    """The operation of a request."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CLOSE = -11


class ZkError(IntEnum):
    """The error number of an answer."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    NO_AUTH = -102
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121


SYNC_CONNECTED: Final = 3
"""The session state in every notice of a watch."""
XID_NOTICE: Final = -1

OPEN_ACL: Final = (Acl(31, "world", "anyone"),)
"""All clients may do everything: the only ACL that this store supports."""

EPHEMERAL, SEQUENTIAL = 1, 2
"""Bits of a create's flags; 4 to 6 are containers and nodes with a time to live."""


class Connect(NamedTuple):
    """The first message of a client. `session` 0 asks for a new one. Time in ms."""

    protocol: int
    last_zxid: int
    timeout_ms: int
    session: int
    password: bytes | None


class Create(NamedTuple):
    """CREATE, CREATE2, CREATE_CONTAINER."""

    path: str
    data: bytes | None
    acl: Sequence[Acl]
    flags: int


class PathVersion(NamedTuple):
    """DELETE and CHECK; version -1 matches any."""

    path: str
    version: int


class PathWatch(NamedTuple):
    """EXISTS, GET_DATA, GET_CHILDREN, GET_CHILDREN2."""

    path: str
    watch: bool


class Path(NamedTuple):
    """GET_ACL, SYNC, GET_EPHEMERALS, GET_ALL_CHILDREN_NUMBER."""

    path: str


class SetData(NamedTuple):
    """SET_DATA."""

    path: str
    data: bytes | None
    version: int


class SetAcl(NamedTuple):
    """SET_ACL."""

    path: str
    acl: Sequence[Acl]
    version: int


class SetWatches(NamedTuple):
    """SET_WATCHES, SET_WATCHES2: watches of a lost connection; nodes that changed after `zxid` are reported at
    once."""

    zxid: int
    data: Sequence[str]
    exist: Sequence[str]
    child: Sequence[str]
    persistent: Sequence[str] = ()
    recursive: Sequence[str] = ()


class PathKind(NamedTuple):
    """REMOVE_WATCHES, CHECK_WATCHES (kind 1 children, 2 data, 3 any) and ADD_WATCH (mode)."""

    path: str
    kind: int


class Auth(NamedTuple):
    """AUTH."""

    kind: int
    scheme: str
    data: bytes | None


class Multi(NamedTuple):
    """MULTI and MULTI_READ: requests that succeed or fail together."""

    ops: Sequence[tuple[int, Any]]


class Nothing(NamedTuple):
    """PING, CLOSE, WHO_AM_I."""


Record = (
    Create | PathVersion | PathWatch | Path | SetData | SetAcl | SetWatches | PathKind | Auth | Multi | Nothing
)  # fmt: skip

FIELDS: Final[Mapping[int, tuple[Any, str]]] = {
    OpCode.CREATE: (Create, "tdAi"),
    OpCode.DELETE: (PathVersion, "ti"),
    OpCode.EXISTS: (PathWatch, "tb"),
    OpCode.GET_DATA: (PathWatch, "tb"),
    OpCode.SET_DATA: (SetData, "tdi"),
    OpCode.GET_ACL: (Path, "t"),
    OpCode.SET_ACL: (SetAcl, "tAi"),
    OpCode.GET_CHILDREN: (PathWatch, "tb"),
    OpCode.SYNC: (Path, "t"),
    OpCode.PING: (Nothing, ""),
    OpCode.GET_CHILDREN2: (PathWatch, "tb"),
    OpCode.CHECK: (PathVersion, "ti"),
    OpCode.CREATE2: (Create, "tdAi"),
    OpCode.CHECK_WATCHES: (PathKind, "ti"),
    OpCode.REMOVE_WATCHES: (PathKind, "ti"),
    OpCode.CREATE_CONTAINER: (Create, "tdAi"),
    OpCode.AUTH: (Auth, "itd"),
    OpCode.SET_WATCHES: (SetWatches, "qTTT"),
    OpCode.GET_EPHEMERALS: (Path, "t"),
    OpCode.GET_ALL_CHILDREN_NUMBER: (Path, "t"),
    OpCode.SET_WATCHES2: (SetWatches, "qTTTTT"),
    OpCode.ADD_WATCH: (PathKind, "ti"),
    OpCode.WHO_AM_I: (Nothing, ""),
    OpCode.CLOSE: (Nothing, ""),
}
"""Class and field types (`jute.read`) of the requests that are one record."""

_MULTI: Final = {
    OpCode.MULTI: (OpCode.CREATE, OpCode.CREATE2, OpCode.DELETE, OpCode.SET_DATA, OpCode.CHECK),
    OpCode.MULTI_READ: (OpCode.GET_DATA, OpCode.GET_CHILDREN),
}
_HEADER: Final = Struct(">iqi")
_ASKED: Final = Struct(">ii")
_PART: Final = Struct(">i?i")
_END: Final = _PART.pack(-1, True, -1)
MAX_OPS: Final = 10_000
"""Parts of one multi."""


def decode_connect(message: bytes) -> Connect:
    """Decode the first message. A field that later clients append (whether a read-only server suffices) is
    ignored."""
    reader = Reader(message)
    return Connect(
        reader.read_int32(), reader.read_int64(), reader.read_int32(), reader.read_int64(), reader.read_buffer()
    )


def encode_connected(timeout_ms: int, session: int, password: bytes) -> bytes:
    """Encode the answer to Connect; session and time-out 0 mean that the requested session is over."""
    return write_fields("iiqdb", (0, timeout_ms, session, password, False))


def decode_request(message: bytes) -> tuple[int, int, Record | None]:
    """Decode a request: xid, op and record; None instead of a record for an unknown op. Raises BadMessage."""
    reader = Reader(message)
    xid, op = reader.read_int32(), reader.read_int32()
    if op in _MULTI:
        record: Record = Multi(_read_parts(reader, _MULTI[OpCode(op)]))
    elif op in FIELDS:
        record = _read_record(reader, op)
    else:
        return xid, op, None
    reader.check_end()
    return xid, op, record


def _read_record(reader: Reader, op: int) -> Any:
    kind, types = FIELDS[op]
    return kind(*read_fields(types, reader))


def _read_parts(reader: Reader, allowed: Sequence[int]) -> list[tuple[int, Any]]:
    parts: list[tuple[int, Any]] = []
    while True:
        op, done, _ = reader.read_int32(), reader.read_flag(), reader.read_int32()
        # A header with this flag ends the multi; there is no count in front of the parts.
        if done:
            return parts
        if op not in allowed:
            raise BadMessage(f"operation {op} inside a multi")
        # Bounded before the part is decoded: the message's size alone allows a hundred thousand.
        if len(parts) == MAX_OPS:
            raise BadMessage(f"a multi of more than {MAX_OPS} operations")
        parts.append((op, _read_record(reader, op)))


def encode_request(xid: int, op: int, record: Record) -> bytes:
    """Encode a request as a client sends it, without its length."""
    head = _ASKED.pack(xid, op)
    if not isinstance(record, Multi):
        types = FIELDS[op][1]
        return head + write_fields(types, record[: len(types)])  # the older form of SetWatches has fewer fields
    parts = [_PART.pack(part, False, -1) + write_fields(FIELDS[part][1], inner) for part, inner in record.ops]
    return b"".join([head, *parts, _END])


def encode_reply(xid: int, zxid: int, error: int = ZkError.OK, types: str = "", values: Sequence[Value] = ()) -> bytes:
    """Encode an answer; one with an error has no record."""
    head = _HEADER.pack(xid, zxid, error)
    return head + write_fields(types, values) if types else head


def encode_parts(parts: Sequence[tuple[int, int, str, Sequence[Value]]]) -> bytes:
    """Encode the record that answers a multi: (op, error, types, values) for each of its parts."""
    encoded = [
        _PART.pack(-1, False, error) + write_fields("i", (error,))
        if op < 0
        # After a failure all parts have an error: op -1, and the code twice.
        else _PART.pack(op, False, error) + write_fields(types, values)
        for op, error, types, values in parts
    ]
    return b"".join([*encoded, _END])


def encode_notice(event: EventKind, path: str) -> bytes:
    """Encode the notice of a watch."""
    return _HEADER.pack(XID_NOTICE, -1, 0) + write_fields("iit", (event, SYNC_CONNECTED, path))
