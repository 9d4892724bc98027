"""Lines of the console producer as records: headers, key and value, as Kafka's LineMessageReader parses them.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.kafka_tools.options import ToolError

_DEFAULTS: Final = {
    "topic": "",
    "parse.key": "false",
    "parse.headers": "false",
    "key.separator": "\t",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "ignore.error": "false",
    "null.marker": "",
}
_EXCEPTION: Final = "org.apache.kafka.common.KafkaException"


class LineRecord(NamedTuple):
    """What a line says."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class LineParser(NamedTuple):
    """The properties of the reader."""

    parse_key: bool
    parse_headers: bool
    key_separator: bytes
    headers_delimiter: bytes
    headers_separator: bytes
    header_key_separator: bytes
    ignore_error: bool
    null_marker: bytes | None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LineParser:
        """The parser for properties by Kafka's names. Raises ToolError for an unknown one."""
        if wrong := [key for key in properties if key not in _DEFAULTS]:
            raise ToolError(f"{wrong[0]} is not a property of the reader: use {', '.join(sorted(_DEFAULTS))}")
        given = {**_DEFAULTS, **properties}
        key, outer, between, inner = (
            given[name].encode()
            for name in ("key.separator", "headers.delimiter", "headers.separator", "headers.key.separator")
        )
        if not (key and outer and between and inner):
            raise ToolError("a separator of the reader is empty", _EXCEPTION)
        if len({outer, between, inner}) < 3:
            raise ToolError(
                "headers.delimiter, headers.separator and headers.key.separator may not be equal", _EXCEPTION
            )
        return cls(
            parse_key=_is_true(given["parse.key"]),
            parse_headers=_is_true(given["parse.headers"]),
            key_separator=key,
            headers_delimiter=outer,
            headers_separator=between,
            header_key_separator=inner,
            ignore_error=_is_true(given["ignore.error"]),
            null_marker=given["null.marker"].encode() if given["null.marker"] else None,
        )

    def parse_line(self, line: bytes, number: int) -> LineRecord:
        """The record of a line. Raises ToolError for one without a separator, unless `ignore.error` is set."""
        headers: bytes | None = None
        key: bytes | None = None
        rest = line
        if self.parse_headers:
            headers, rest = self._split(rest, self.headers_delimiter, "headers delimiter", number)
        if self.parse_key:
            key, rest = self._split(rest, self.key_separator, "key separator", number)
        pairs = () if self._marked(headers) is None else self._parse_headers(headers or b"", number)
        return LineRecord(self._marked(key), self._marked(rest), pairs)

    def _marked(self, part: bytes | None) -> bytes | None:
        return None if part is not None and part == self.null_marker else part

    def _split(self, text: bytes, separator: bytes, what: str, number: int) -> tuple[bytes | None, bytes]:
        first, found, rest = text.partition(separator)
        if found:
            return first, rest
        if self.ignore_error:
            return None, text
        raise ToolError(f"No {what} found on line number {number}: '{text.decode('utf-8', 'replace')}'", _EXCEPTION)

    def _parse_headers(self, text: bytes, number: int) -> tuple[tuple[str, bytes | None], ...]:
        pairs = []
        for pair in text.split(self.headers_separator):
            key, found, content = pair.partition(self.header_key_separator)
            if not found and not self.ignore_error:
                shown = pair.decode("utf-8", "replace")
                raise ToolError(f"No header key separator found in pair '{shown}' on line number {number}", _EXCEPTION)
            if key == self.null_marker:
                raise ToolError(f"Header keys should not be equal to the null marker on line {number}", _EXCEPTION)
            # With ignore.error a pair without a separator is a key without a value.
            pairs.append((key.decode("utf-8", "replace"), self._marked(content) if found else None))
        return tuple(pairs)


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"
