"""Results on stdout: tables for people, JSON, CSV and YAML for programs.

Zone: real. Colours only in a terminal, and only of headings and verdicts. Sends no request to a cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import click

from ottla.terminal import Style, visible_text, write_styled
from ottla.utf8 import readable_text

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]

TABLE_AND_DOCUMENTS: Final = ("table", "json", "jsonl", "csv", "yaml")
"""The formats of a command whose results `write_documents` prints unless they are a table."""
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_YAML_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
"""Words that YAML 1.1 does not read as text."""
_VERDICTS: Final = {
    "ok": Style.GOOD,
    "yes": Style.GOOD,
    "warning": Style.WARNING,
    "error": Style.BAD,
    "no": Style.BAD,
}


def write_line(text: str) -> None:
    """Print a line of data, with replacement characters for text that is not UTF-8."""
    click.echo(readable_text(text))


def write_verdict(word: str, rest: str, *, before: str = "") -> None:
    """Print a line with a verdict, which has a colour in a terminal.

    word: `ok`, `yes`, `warning`, `error` or `no`, with spaces behind it. before, rest: text around it.
    """
    pieces = ((before, Style.PLAIN), (word, _VERDICTS.get(word.strip(), Style.PLAIN)), (rest, Style.PLAIN))
    write_styled((readable_text(text), style) for text, style in pieces)


def write_json(value: Json) -> None:
    """Print one document, indented."""
    write_line(json.dumps(value, indent=2, ensure_ascii=False))


def write_jsonl(values: Iterable[Json]) -> None:
    """Print one document per line."""
    for value in values:
        write_line(_short_json(value))


def write_documents(output: str, documents: Sequence[Json]) -> None:
    """Print documents in the form of `-o json` (one array), `jsonl`, `csv` (a header, then rows) or `yaml` (a list)."""
    if output == "json":
        write_json(documents)
    elif output == "csv":
        _write_csv(documents)
    elif output == "yaml":
        write_line("\n".join(_yaml_lines(documents)))
    else:
        write_jsonl(documents)


def write_document(output: str, document: Json) -> None:
    """Print the one document of a command: as `write_documents`, but JSON and YAML without a list around it."""
    if output == "json":
        write_json(document)
    elif output == "yaml":
        write_line("\n".join(_yaml_lines(document)))
    else:
        write_documents(output, [document])


def time_text(ms: int) -> str:
    """A time in ms since 1970, in UTC."""
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(ms)


def write_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns, two spaces apart, numbers aligned right. A row is one line: control characters are escaped."""
    cells = [["-" if cell is None else one_line(str(cell)) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *cells]) for i in range(len(header))]
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(header))]
    for number, line in enumerate([list(header), *cells]):
        padded = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        write_styled([("  ".join(padded).rstrip(), Style.PLAIN if number else Style.STRONG)])


def one_line(text: str) -> str:
    """`text` with newlines, tabs and other control characters as escapes."""
    return visible_text(readable_text(text)).replace("\n", "\\x0a").replace("\t", "\\x09")


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").isdigit()


def _short_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _write_csv(documents: Sequence[Json]) -> None:
    """Print a header with all fields, then a row per document; what is no single value is JSON in its cell."""
    import csv
    import io

    rows = [document if isinstance(document, Mapping) else {"value": document} for document in documents]
    fields = list(dict.fromkeys(field for row in rows for field in row))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerows([fields, *([_csv_cell(row.get(field)) for field in fields] for row in rows)] if fields else [])
    if fields:
        write_line(text.getvalue().removesuffix("\n"))


def _csv_cell(value: Json) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _short_json(value)


def _yaml_lines(value: Json) -> Iterator[str]:
    """The lines of a value in block style; text is always quoted, so that no word of YAML is mistaken for it."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            name = key if _PLAIN_KEY.match(key) and key.lower() not in _YAML_WORDS else _yaml_scalar(key)
            if _is_block(each):
                yield f"{name}:"
                yield from (f"  {line}" for line in _yaml_lines(each))
            else:
                yield f"{name}: {_yaml_scalar(each)}"
    elif _is_block(value):
        assert isinstance(value, Sequence)
        for each in value:
            first, *rest = _yaml_lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _yaml_scalar(value)


def _is_block(value: Json) -> bool:
    return bool(value) and isinstance(value, Mapping | Sequence) and not isinstance(value, str)


def _yaml_scalar(value: Json) -> str:
    """A value as JSON, which YAML contains except for characters that it takes for line breaks."""
    return "".join(
        char if char.isprintable() else f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
        for char in readable_text(_short_json(value))
    )
