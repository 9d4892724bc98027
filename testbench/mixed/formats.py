"""The formats that each release may write and read, by the inventory, and whether bytes keep to them.

Zone: pure. The levels of `inter.broker.protocol.version` are written a second time here, because the code of the
brokers is what the runs judge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from ottla.cluster.store.layout import FEATURE
from ottla.record.internal.parsing import parse_versioned
from ottla.record.internal.transactions import TransactionLogValue
from ottla.storage import layout
from ottla.types import NO_PRODUCER_ID
from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode
from ottla.wire.header import decode_request_header
from ottla.wire.messages import WriteTxnMarkersRequest
from testbench.formats.inventory import EXCHANGES, FILES, NODES, PARENTS, RECORDS


class Release(Enum):
    """The release of a broker."""

    EARLIER = "release 0.1"
    PRESENT = "this release"


class Level(NamedTuple):
    """The newest versions that a broker may write and send under an `inter.broker.protocol.version`."""

    offset: int
    group: int
    fetch: int


LEVELS: Final[Mapping[str, Level]] = MappingProxyType(
    {
        "0.10.0": Level(1, 0, 10),
        "2.0": Level(1, 1, 10),
        "2.1-IV0": Level(2, 2, 10),
        "2.2": Level(3, 2, 10),
        "2.7": Level(3, 3, 12),
        "3.9": Level(3, 3, 17),
    }
)
WITH_EARLIER: Final = ("2.7", "3.9")
"""Levels of brokers of release 0.1, which ignores the level in records."""
OFFSETS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
OLD_FORMAT: Final = "old-format"
"""The topic of a run with an older message format."""
OLD_MAGIC: Final = 1
_OLD_MARKERS: Final = 1
_NOT_WRITTEN: Final = "not written"
_VERSION: Final = re.compile(rb'version"?\s*[:=]\s*(\d+)|\A(\d+)\n')
_SENT: Final = {each.api: set[int]() for each in EXCHANGES}
_ACCEPTED: Final = {ApiKey[each.api]: each.accepted for each in EXCHANGES}
for _each in EXCHANGES:
    _SENT[_each.api] |= set(_each.versions)


def _leading_number(text: str) -> int | None:
    found = re.match(r"\d+", text)
    return None if found is None else int(found[0])


def _earlier_record(name: str) -> int:
    found = next(_leading_number(each.old) for each in RECORDS if each.name == name)
    assert found is not None, name
    return found


EARLIER_OFFSET: Final = _earlier_record("committed offset")
EARLIER_GROUP: Final = _earlier_record("group")
EARLIER_TRANSACTION: Final = _earlier_record("state of a transactional id")


# -- requests ----------------------------------------------------------------------------------------------------------


def request_of(frame: bytes | bytearray | memoryview) -> tuple[int, int]:
    """API key and version of a request."""
    return int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])


def find_unsendable(frame: bytes, level: str, old_markers: bool) -> str | None:
    """The problem of a request that a broker sends. `old_markers`: transaction.version is below 2."""
    key, version = request_of(frame)
    name = ApiKey(key).name
    if version not in _SENT.get(name, set()):
        return f"sends {name} in version {version}, which is not in the inventory"
    if key == ApiKey.FETCH and version > LEVELS[level].fetch:
        return f"sends {name} in version {version} instead of {LEVELS[level].fetch} or older"
    if key == ApiKey.WRITE_TXN_MARKERS and version > _OLD_MARKERS and old_markers and not _has_new_marker(frame):
        return f"sends {name} in version {version} instead of {_OLD_MARKERS}, for transactions of the older protocol"
    return None


def _has_new_marker(frame: bytes) -> bool:
    """Whether a transaction keeps the version with which its producer began it."""
    header = decode_request_header(frame)
    request, _ = decode(WriteTxnMarkersRequest, header.api_version, frame, header.body_pos)
    return any(marker.transaction_version > _OLD_MARKERS for marker in request.markers)


def find_unreadable(frame: memoryview) -> str | None:
    """The problem of a request from a broker that reaches one of release 0.1."""
    key, version = request_of(frame)
    low, high = _ACCEPTED.get(ApiKey(key), (0, -1))
    return (
        None if low <= version <= high else f"gets {ApiKey(key).name} in version {version}, and reads {low} to {high}"
    )


# -- records -----------------------------------------------------------------------------------------------------------


class RecordLimits(NamedTuple):
    """The newest versions of records that a writer may use."""

    offset: int
    group: int
    transaction: int


def limits_of(release: Release, level: str) -> RecordLimits:
    """The limits of a broker; those of release 0.1 are also what it reads."""
    if release is Release.EARLIER:
        return RecordLimits(EARLIER_OFFSET, EARLIER_GROUP, EARLIER_TRANSACTION)
    return RecordLimits(LEVELS[level].offset, LEVELS[level].group, EARLIER_TRANSACTION)


def find_new_record(topic: str, key: bytes | None, value: bytes | None, limits: RecordLimits) -> str | None:
    """The problem of a record of an internal topic."""
    if key is None or value is None:
        return None
    kind, version = int.from_bytes(key[:2]), int.from_bytes(value[:2])
    of_groups = {0: limits.offset, 1: limits.offset, 2: limits.group}
    known = of_groups if topic == OFFSETS else {0: limits.transaction}
    if kind not in known:
        return f"has a record of type {kind}, which release 0.1 does not know"
    if version <= known[kind] or (topic == TRANSACTIONS and version <= EARLIER_TRANSACTION and _needs_tags(value)):
        return None
    return f"has a record of type {kind} in version {version} instead of {known[kind]} or older"


def _needs_tags(value: bytes) -> bool:
    """Whether version 0 lacks a field that decides about the transaction."""
    _, txn = parse_versioned(TransactionLogValue, value)
    assert isinstance(txn, TransactionLogValue)
    return txn.next_producer_id != NO_PRODUCER_ID or bool(txn.client_transaction_version)


# -- nodes of the metadata store ---------------------------------------------------------------------------------------


def find_new_node(path: str, data: bytes) -> str | None:
    """The problem of a node that a broker of release 0.1 reads."""
    limit = _limit_of_node(path)
    if limit is None:
        return None
    version = _json_version(data)
    return f"reads {path} in version {version} instead of {limit} or older" if version > limit else None


def _limit_of_node(path: str) -> int | None:
    """The newest version that release 0.1 reads; -1: it reads none; None: it reads no version in the node."""
    names = [(name, each) for each in NODES for name in each.names if _is_node(path, name)]
    if not names or path in PARENTS:
        return None
    _, found = max(names, key=lambda pair: (pair[0] == "/state", len(pair[0])))
    if found.old == _NOT_WRITTEN:
        return -1
    # Of `/feature` it looks only whether it exists.
    return None if FEATURE in found.names else _leading_number(found.old)


def _is_node(path: str, name: str) -> bool:
    if name in ("/state", "/partitions", "/partitions/"):
        return path.endswith(name)
    if name.endswith("_"):  # the beginning of the name of a sequential node
        return name in path
    return path == name or path.startswith(f"{name}/")


def _json_version(data: bytes) -> int:
    try:
        found = json.loads(data or b"{}").get("version", 0)
    except (ValueError, AttributeError):
        return 0
    return found if isinstance(found, int) else 0


# -- files -------------------------------------------------------------------------------------------------------------


def _limits_of_files() -> Iterator[tuple[str, int]]:
    for each in FILES:
        limit = _leading_number(each.old)
        if limit is not None:
            for name in each.names:
                yield getattr(layout, name), limit


_FILE_LIMITS: Final = dict(_limits_of_files())
_BINARY: Final = (layout.SNAPSHOT,)
"""Files whose first two bytes are their version."""


def find_new_file(name: str, data: bytes) -> str | None:
    """The problem of a file that a broker of release 0.1 finds when it starts."""
    suffix = next((each for each in _BINARY if name.endswith(each)), name)
    limit = _FILE_LIMITS.get(suffix)
    version = None if limit is None else _file_version(suffix, data)
    if limit is None or version is None or version <= limit:
        return None
    return f"finds {name} in version {version} instead of {limit} or older"


def _file_version(suffix: str, data: bytes) -> int | None:
    """The version at the beginning of a file; None for one that a power loss has torn."""
    if suffix in _BINARY:
        return int.from_bytes(data[:2]) if len(data) >= 2 else None
    found = _VERSION.search(data)
    return None if found is None else int(found[1] or found[2])
