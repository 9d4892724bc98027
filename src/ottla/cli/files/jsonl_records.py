"""Records as JSON lines, the lines of `ottla consume -o jsonl`.

Zone: pure. One record at a time, in both directions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from ottla.cli.failure import BadLine
from ottla.cli.files.cells import AUTO, JSON, ShowCell, read_document, show_cell
from ottla.cli.views.record_text import RecordLine, Shown, bytes_to_json, from_json, headers_to_json
from ottla.utf8 import readable_text


class JsonlWriter:
    """Writes a line per record."""

    def __init__(self, stream: BinaryIO, topic: str, key_format: str = AUTO, value_format: str = AUTO) -> None:
        self._stream = stream
        self._topic = _dump_json(readable_text(topic))
        self._show_key, self._show_value = show_cell(key_format), show_cell(value_format)
        self._keys_are_json, self._values_are_json = key_format == JSON, value_format == JSON

    def write_record(self, partition: int, record: Shown) -> None:
        """Write a record."""
        key = _json_cell(record.key, self._show_key, is_json=self._keys_are_json)
        value = _json_cell(record.value, self._show_value, is_json=self._values_are_json)
        headers = _dump_json(headers_to_json(record.headers)) if record.headers else "[]"
        self._stream.write(
            f'{{"topic":{self._topic},"partition":{partition},"offset":{record.offset},"timestamp":{record.timestamp},'
            f'"headers":{headers},"key":{key},"value":{value}}}\n'.encode()
        )

    def end_file(self) -> None:
        """Nothing is left to write."""

    def abandon_file(self) -> None:
        """Nothing marks the end of such a file."""


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _json_cell(content: bytes | None, show: ShowCell, *, is_json: bool) -> str:
    if content is None:
        return "null"
    text = show(content)
    if text is None:
        return _base64_document(content)
    return text if is_json else _dump_json(text)


def _base64_document(content: bytes) -> str:
    # `bytes_to_json` has a string for bytes that are UTF-8, which another format would read as its own text.
    import base64

    found = bytes_to_json(content)
    return _dump_json(found if isinstance(found, dict) else {"base64": base64.b64encode(content).decode("ascii")})


def read_jsonl(
    lines: Iterable[bytes], skip: int, key_format: str = AUTO, value_format: str = AUTO
) -> Iterator[tuple[int, RecordLine]]:
    """The number of each line, from 1, and its record; the first `skip` lines are not parsed. Raises BadLine."""
    read_key, read_value = read_document(key_format), read_document(value_format)
    for number, line in enumerate(lines, 1):
        if number <= skip:
            continue
        try:
            record = from_json(line, read_key, read_value)
        except ValueError as error:
            raise BadLine(number, str(error), "record") from error
        yield number, record
