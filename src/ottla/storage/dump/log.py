"""Reads batches and records of a log file.

Zone: real. Walks the file; `items` formats the output, and a function that the caller passes decodes internal topics.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ottla.record import legacy
from ottla.record.batch import MAGIC_V2, BatchHeader, Record, records_of
from ottla.record.control import ControlType, control_type, parse_marker
from ottla.record.errors import CorruptRecord
from ottla.storage.dump.files import BATCH_MAX, BatchFile, Frame
from ottla.storage.dump.items import Batch, Content, Fields, Item, RecordLine, Words, codec_name, more_line, stamp_name
from ottla.utf8 import readable_text

Decoder = Callable[[int, bytes | None, bytes | None], Content]
"""(offset, key, value) → the printed content."""


def as_text(_offset: int, key: bytes | None, value: bytes | None) -> Content:
    """The decoder of ordinary topics: UTF-8, with replacement characters for other bytes."""
    return Content(_field_text(key), _field_text(value))


def _field_text(field: bytes | None) -> str | None:
    return None if field is None else field.decode(errors="replace")


class LogOptions(NamedTuple):
    """Which parts of a log file are shown."""

    deep: bool = False
    """Records, not only batches."""
    contents: bool = False
    """Keys and values; implies deep."""
    metadata: bool = True
    """The metadata of records."""
    max_bytes: int | None = None
    decoder: Decoder = as_text


GAPS_MAX: Final = 1 << 22
"""How many gaps are kept for the report about a log: 64 MiB."""


class Gaps:
    """Pairs of offsets that do not follow each other: two numbers per pair, since a compacted log has very many."""

    def __init__(self) -> None:
        self.pairs = array("q")
        self._last = -1

    def check_offset(self, offset: int) -> None:
        """Check the next record's offset. As in Kafka's tool, a file begins after -1."""
        if offset != self._last + 1 and len(self.pairs) < 2 * GAPS_MAX:
            self.pairs.extend((self._last, offset))
        self._last = offset

    def report_lines(self) -> Iterator[str]:
        """Kafka's report of the gaps."""
        for i in range(0, len(self.pairs), 2):
            yield f"  {self.pairs[i]} is followed by {self.pairs[i + 1]}"
        if len(self.pairs) == 2 * GAPS_MAX:
            yield more_line(GAPS_MAX)


Complain = Callable[[str, Exception], None]
"""Takes a line about bytes that break the format, and the error."""


def dump_log(path: str, options: LogOptions, gaps: Gaps, complain: Complain) -> Iterator[Item]:
    """Items of a log file: each batch, then its records. Raises OSError.

    Bytes that break the format go to `complain`, and the walk continues with the next batch where its place is known;
    `gaps` collects offsets that do not follow each other.
    """
    with BatchFile(path, options.max_bytes) as file:
        position = 0
        try:
            for frame in file.iter_frames():
                yield from _dump_batch(file, frame, options, gaps, complain)
                position = frame.position + frame.size
        except CorruptRecord as error:
            complain(f"{path}: {error.message}", error)
        # Not reported with --max-bytes: there the walk ends early on purpose.
        if position < file.size and options.max_bytes is None:
            name = path.rpartition("/")[2]
            yield Words(f"Found {file.size - position} invalid bytes at the end of {name}")


def _dump_batch(file: BatchFile, frame: Frame, options: LogOptions, gaps: Gaps, complain: Complain) -> Iterator[Item]:
    walk = _dump_v2_batch if frame.magic >= MAGIC_V2 else _dump_message
    try:
        yield from walk(file, frame, options, gaps)
    except CorruptRecord as error:
        complain(f"{file.path}: batch at position {frame.position}: {error.message}", error)


def _dump_v2_batch(file: BatchFile, frame: Frame, options: LogOptions, gaps: Gaps) -> Iterator[Item]:
    header = file.read_header(frame)
    yield Batch(header, frame.position, file.compute_checksum(frame) == header.crc)
    if options.deep:
        for record in records_of(file.read_batch(frame), 0, max_bytes=BATCH_MAX):
            gaps.check_offset(record.offset)
            yield _record_line(header, record, options)


def _record_line(header: BatchHeader, record: Record, options: LogOptions) -> RecordLine:
    rest: list[tuple[str, object]] = [
        ("sequence", _record_sequence(header, record)),
        ("headerKeys", tuple([readable_text(key) for key, _ in record.headers])),
    ]
    if header.is_control:
        rest += _control_fields(record)
    content = None
    if options.contents and not header.is_control:
        content = options.decoder(record.offset, record.key, record.value)
    return RecordLine(
        record.offset,
        stamp_name(header),
        record.timestamp,
        record.key,
        record.value,
        tuple(rest),
        content,
        options.metadata,
    )


def _record_sequence(header: BatchHeader, record: Record) -> int:
    if header.base_sequence < 0:
        return -1
    # Sequences go from the largest int to zero, not to a negative number.
    return (header.base_sequence + record.offset - header.base_offset) & 0x7FFFFFFF


def _control_fields(record: Record) -> list[tuple[str, object]]:
    marker = parse_marker(record.key, record.value)
    if marker is not None:
        return [
            ("endTxnMarker", "COMMIT" if marker.commit else "ABORT"),
            ("coordinatorEpoch", marker.coordinator_epoch),
        ]
    number = control_type(record.key)
    # A newer broker may have written control records that are not known here: the walk shows their number.
    name = ControlType(number).name if number in list(ControlType) else "UNKNOWN"
    return [("controlType", f"{name}({number})")]


def _dump_message(file: BatchFile, frame: Frame, options: LogOptions, gaps: Gaps) -> Iterator[Item]:
    message = legacy.message_at(file.read_batch(frame), 0)
    stamp = _legacy_stamp(message)
    yield Fields(
        "message",
        (
            ("offset", message.offset),
            ("position", frame.position),
            (stamp, message.timestamp),
            ("size", message.size),
            ("magic", message.magic),
            ("compresscodec", codec_name(message.codec)),
            ("crc", message.crc),
            ("isvalid", message.valid),
        ),
    )
    if options.deep:
        for inner in legacy.messages_in(message, BATCH_MAX):
            # Offsets are checked inside of compressed messages: these alone say which records there are.
            gaps.check_offset(inner.offset)
            content = options.decoder(inner.offset, inner.key, inner.value) if options.contents else None
            verdict = (("isValid", inner.valid), ("crc", inner.crc))
            yield RecordLine(
                inner.offset, stamp, inner.timestamp, inner.key, inner.value, verdict, content, options.metadata
            )


def _legacy_stamp(message: legacy.Message) -> str:
    if message.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if message.attributes & legacy.TIMESTAMP_TYPE else "CreateTime"
