"""Results on stdout: tables for people, JSON for programs.

Zone: real. Plain text without colours, in a terminal or not. Sends no request to a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import click

from ottla.terminal import visible_text
from ottla.utf8 import readable_text

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]


def write_line(text: str) -> None:
    """Print a line of data, with replacement characters for text that is not UTF-8."""
    click.echo(readable_text(text))


def write_json(value: Json) -> None:
    """Print one document, indented."""
    write_line(json.dumps(value, indent=2, ensure_ascii=False))


def write_jsonl(values: Iterable[Json]) -> None:
    """Print one document per line."""
    for value in values:
        write_line(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def write_documents(output: str, documents: Sequence[Json]) -> None:
    """Print documents in the form of `-o json` (one array) or `-o jsonl`."""
    if output == "json":
        write_json(documents)
    else:
        write_jsonl(documents)


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
    for line in [list(header), *cells]:
        padded = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        write_line("  ".join(padded).rstrip())


def one_line(text: str) -> str:
    """`text` with newlines, tabs and other control characters as escapes."""
    return visible_text(readable_text(text)).replace("\n", "\\x0a").replace("\t", "\\x09")


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").isdigit()
