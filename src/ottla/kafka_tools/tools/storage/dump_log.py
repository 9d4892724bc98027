"""kafka-dump-log: the contents of log, index, snapshot and transaction index files.

Zone: real. `ottla.storage.dump` reads the files and has Kafka's lines. As Kafka's tool, this one ends at the first file
that it cannot read; `ottla log dump` continues with the next one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Final

from ottla.kafka_tools.options import (
    Option,
    Options,
    Takes,
    Tool,
    ToolError,
    WordsReport,
    flag,
    require_options,
    value,
)
from ottla.record.errors import CorruptRecord
from ottla.record.legacy import SIZE_MIN
from ottla.storage.checkpoints import CorruptCheckpoint, WrongChecksum
from ottla.storage.dump.decoders import as_offsets, as_transactions
from ottla.storage.dump.files import TooSmallBatch
from ottla.storage.dump.indexes import CorruptIndex, IndexOptions, NameWithoutOffset
from ottla.storage.dump.items import Item, Words
from ottla.storage.dump.log import Decoder, LogOptions, as_text
from ottla.storage.dump.tool import Dump
from ottla.storage.dump.tool import Options as DumpOptions

_KINDS: Final = (".log", ".index", ".timeindex", ".snapshot", ".txnindex", ".checkpoint")
_INT_MAX: Final = 2**31 - 1
_MESSAGE_SIZE: Final = 5 * 1024 * 1024
_LINES_PER_WRITE: Final = 1000
_STRING_DECODERS: Final = (
    "org.apache.kafka.tools.api.StringDecoder",
    "kafka.serializer.StringDecoder",  # its name before Kafka 4.0
)
_DECODERS: Final = {"offsets-decoder": as_offsets, "transaction-log-decoder": as_transactions}
_DECODER_CLASSES: Final = ("value-decoder-class", "key-decoder-class")


def run_dump_log(options: Options) -> None:
    """Print the files, then the mismatches of their indexes and gaps of their offsets."""
    require_options(options, "files")
    output = _Output()
    dump = Dump(_dump_options(options), output.complain, output.end_run)
    try:
        for path in _split_paths(options.value_of("files")):
            if os.path.splitext(path)[1] in _KINDS:
                output.print_items(dump.iter_items([path]))
            else:
                output.print_items([Words(f"Dumping {path}")])
                output.complain(f"Ignoring unknown file {path}")
    finally:
        output.flush()
    for line in dump.report_lines():
        output.complain(line)


def _split_paths(text: str) -> list[str]:
    # As Java splits: empty names count, except at the end.
    paths = text.split(",")
    while text and paths and not paths[-1]:
        paths.pop()
    return paths


def _dump_options(options: Options) -> DumpOptions:
    for name in _DECODER_CLASSES:
        _check_decoder(options.value_of(name, _STRING_DECODERS[0]))
    max_bytes = _size_of(options, "max-bytes", _INT_MAX)
    contents = any(options.has(name) for name in ("print-data-log", *_DECODERS, *_DECODER_CLASSES))
    logs = LogOptions(
        deep=contents or options.has("deep-iteration"),
        contents=contents,
        metadata=not options.has("skip-record-metadata"),
        # Without a limit, bytes after the last batch are reported.
        max_bytes=None if max_bytes == _INT_MAX else max_bytes,
        decoder=_choose_decoder(options),
    )
    return DumpOptions(
        logs,
        IndexOptions(
            options.has("index-sanity-check"),
            options.has("verify-index-only"),
            _size_of(options, "max-message-size", _MESSAGE_SIZE),
        ),
    )


def _check_decoder(name: str) -> None:
    if name not in _STRING_DECODERS:
        raise ToolError(
            f"Failed to load decoder class {name}: Ottla runs no Java, and has only {_STRING_DECODERS[0]}",
            "java.lang.RuntimeException",
        )


def _choose_decoder(options: Options) -> Decoder:
    return next((decoder for name, decoder in _DECODERS.items() if options.has(name)), as_text)


def _size_of(options: Options, name: str, default: int) -> int:
    size = options.number_of(name, default)
    if size > _INT_MAX or size < -_INT_MAX - 1:
        raise ToolError(
            f"Cannot parse argument '{options.value_of(name)}' of option {name}",
            "joptsimple.OptionArgumentConversionException",
        )
    if size < 0:
        raise ToolError(f"Invalid size: {size} of option {name}", "java.lang.IllegalArgumentException")
    return size


class _Output:
    """Writes many lines of standard output at once, and those before a complaint before it."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def print_items(self, items: Iterable[Item]) -> None:
        for item in items:
            self._lines.append(item.text())
            if len(self._lines) >= _LINES_PER_WRITE:
                self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if not lines:
            return
        text = "\n".join([*lines, ""])
        # Bytes, because a terminal may have another encoding; where stdout has no bytes (a test), as text.
        buffer = getattr(sys.stdout, "buffer", None)
        if buffer is None:
            sys.stdout.write(text)
        else:
            buffer.write(text.encode(errors="backslashreplace"))
            buffer.flush()

    def complain(self, line: str) -> None:
        self.flush()
        print(line, file=sys.stderr, flush=True)

    def end_run(self, line: str, error: Exception) -> None:
        # Kafka's tool continues after a snapshot, and ends with an exception for all others.
        if isinstance(error, WrongChecksum):
            sums = f"Stored crc: {error.stored}. Computed crc: {error.computed}"
            self.complain(f"Snapshot is corrupt (CRC is no longer valid). {sums}")
        elif isinstance(error, CorruptCheckpoint):
            self.complain(f"Snapshot failed schema validation: {error}")
        else:
            raise _java_error(line, error)


def _java_error(line: str, error: Exception) -> ToolError:
    if isinstance(error, FileNotFoundError):
        return ToolError(str(error.filename), "java.nio.file.NoSuchFileException")
    if isinstance(error, OSError):
        return ToolError(line, "java.io.IOException")
    if isinstance(error, NameWithoutOffset):
        return ToolError(f'For input string: "{error.beginning}"', "java.lang.NumberFormatException")
    if isinstance(error, CorruptIndex):
        return ToolError(line, "org.apache.kafka.storage.internals.log.CorruptIndexException")
    if isinstance(error, TooSmallBatch) and error.size < SIZE_MIN:
        return ToolError(
            f"Found record size {error.size} smaller than minimum record overhead ({SIZE_MIN}) in file {error.path}.",
            "org.apache.kafka.common.errors.CorruptRecordException",
        )
    assert isinstance(error, CorruptRecord)
    return ToolError(line, "org.apache.kafka.common.InvalidRecordException")


def _decoder_class(name: str, what: str) -> Option:
    return Option(name, Takes.MAYBE, f"The class that deserializes the {what}: {_STRING_DECODERS[0]}.")


_ONLY_KAFKA: Final = "Ottla does not write such records. Use Apache Kafka's own tool for files of Apache Kafka"

TOOL: Final = Tool(
    "This tool helps to parse a log file and dump its contents to the console, useful for debugging a seemingly "
    "corrupt log segment.",
    (
        value("files", "REQUIRED: The comma separated list of data and index log files to be dumped."),
        flag("print-data-log", "Print the messages content of data logs. Set if any decoder option is specified."),
        flag("deep-iteration", "Print records, not only batches. Set if print-data-log is."),
        flag("index-sanity-check", "Just check whether a broker would rebuild the index, without its content."),
        flag("verify-index-only", "Just verify the index against the log, without printing its content."),
        value("max-message-size", f"Size of largest message. (default: {_MESSAGE_SIZE})"),
        value("max-bytes", f"Read no more bytes of a log than this. (default: {_INT_MAX})"),
        _decoder_class("value-decoder-class", "messages"),
        _decoder_class("key-decoder-class", "keys"),
        flag("offsets-decoder", "Parse log data as offset data from the __consumer_offsets topic."),
        flag("transaction-log-decoder", "Parse log data as metadata from the __transaction_state topic."),
        flag("skip-record-metadata", "Skip metadata when printing records, and control records."),
        flag("cluster-metadata-decoder", "", _ONLY_KAFKA),
        flag("remote-log-metadata-decoder", "", _ONLY_KAFKA),
        flag("share-group-state-decoder", "", _ONLY_KAFKA),
    ),
    run_dump_log,
    wrong_words=WordsReport.CLASS_ONLY,
    class_only=True,
)
