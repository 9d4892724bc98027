"""Records of internal topics as lines, as the formatters of Kafka's console consumer print them.

Zone: pure. Text only; the layouts are in `ottla.record.internal`, their JSON in `ottla.storage.dump.decoders`.

    offsets, groups     of `__consumer_offsets`: JSON of committed offsets, or of generations of groups
    transactions        of `__transaction_state`: JSON
    offsets-1.0         committed offsets as Kafka 1.0 printed them
"""

from __future__ import annotations

import json
from typing import Final

from ottla.cli.views.record_text import Piece, Placed
from ottla.record.errors import CorruptRecord
from ottla.record.internal.groups import (
    GROUP_RECORDS,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.record.internal.parsing import InternalRecord, RecordTypes, UnknownType, parse_record
from ottla.record.internal.transactions import TRANSACTION_RECORDS
from ottla.storage.dump.decoders import message_as_json
from ottla.utf8 import readable_text

FORMATTERS: Final = ("offsets", "groups", "transactions", "offsets-1.0")
_KAFKAS: Final = {
    "GroupMetadataManager$OffsetsMessageFormatter": "offsets-1.0",
    "OffsetsMessageFormatter": "offsets",
    "GroupMetadataMessageFormatter": "groups",
    "TransactionLogMessageFormatter": "transactions",
}
"""The class names of Kafka's formatters, in any package. The enclosing class tells the one that printed text."""


def make_formatter(name: str) -> Piece:
    """A function that renders the records of one kind, and nothing of others. Raises ValueError for a wrong name."""
    nested = name.rpartition(".")[2]
    chosen = _KAFKAS.get(nested) or _KAFKAS.get(nested.rpartition("$")[2], name)
    if chosen not in FORMATTERS:
        raise ValueError(f"{name!r} is not a formatter: use {', '.join(FORMATTERS)}")
    if chosen == "transactions":
        return lambda at: _json_line(_parse_internal(TRANSACTION_RECORDS, at))
    if chosen == "offsets-1.0":
        return lambda at: _offsets_line(_parse_internal(GROUP_RECORDS, at))
    kind = OffsetCommitKey if chosen == "offsets" else GroupMetadataKey
    return lambda at: _json_line(_of_kind(_parse_internal(GROUP_RECORDS, at), kind))


def _parse_internal(types: RecordTypes, at: Placed) -> InternalRecord | None:
    try:
        return parse_record(types, at.record.key, at.record.value)
    except (UnknownType, CorruptRecord):
        return None


def _of_kind(record: InternalRecord | None, kind: type) -> InternalRecord | None:
    return record if record is not None and isinstance(record.key, kind) else None


def _json_line(record: InternalRecord | None) -> bytes:
    if record is None:
        return b""
    value = None
    if record.value is not None:
        value = {"version": record.version, "data": message_as_json(record.value, record.version)}
    shown = {"key": {"type": record.type, "data": message_as_json(record.key, 0)}, "value": value}
    return readable_text(json.dumps(shown, ensure_ascii=False, separators=(",", ":"))).encode() + b"\n"


def _offsets_line(record: InternalRecord | None) -> bytes:
    if record is None or not isinstance(record.key, OffsetCommitKey):
        return b""
    key, value = record.key, record.value
    shown = "NULL"
    if value is not None:
        assert isinstance(value, OffsetCommitValue)
        # Kafka 1.0 reads versions 0 and 1, which have this time; later versions do not, for which 2.1 to 2.8 print "_".
        expires = "_" if record.version > 1 else value.expire_timestamp
        metadata = f"OffsetMetadata[{value.offset},{value.metadata or 'NO_METADATA'}]"
        shown = f"[{metadata},CommitTime {value.commit_timestamp},ExpirationTime {expires}]"
    return readable_text(f"[{key.group},{key.topic},{key.partition}]::{shown}\n").encode()
