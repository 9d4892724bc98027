"""The tables of docs/formats.md.

Zone: pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from testbench.formats.inventory import EXCHANGES, FILES, NODES, RECORDS, Exchange, StoredFormat
from testbench.releases import ROOT

PAGE: Final = ROOT / "docs" / "formats.md"
_SECTIONS: Final[dict[str, Sequence[StoredFormat]]] = {
    "Files": FILES,
    "Records of internal topics": RECORDS,
    "Nodes of the metadata store": NODES,
}
_HEAD: Final = "| format | release 0.1 | this release | gate |\n|---|---|---|---|\n"
_SENT_HEAD: Final = "| request | versions sent | accepted by 0.1 | gate |\n|---|---|---|---|\n"


def with_tables(text: str) -> str:
    """The page with its tables made again."""
    tables = {title: _HEAD + _lines(map(_stored_row, formats)) for title, formats in _SECTIONS.items()}
    tables["Requests between brokers"] = _SENT_HEAD + _lines(dict.fromkeys(map(_sent_row, EXCHANGES)))
    for title, table in tables.items():
        before, found, rest = text.partition(f"## {title}\n\n")
        assert found, f"{PAGE} has no section {title}"
        text = before + found + table + re.sub(r"\A(\|.*\n)*", "", rest)
    return text


def _lines(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _stored_row(each: StoredFormat) -> tuple[str, ...]:
    return each.name, each.old, each.new, each.gate


def _sent_row(each: Exchange) -> tuple[str, ...]:
    low, high = each.accepted
    return each.api.lower(), ", ".join(map(str, each.versions)), f"{low} to {high}", each.gate
