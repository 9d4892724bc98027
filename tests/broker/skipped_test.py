"""Every API of the protocol has a handler or a row in docs/skipped.md, and none has both.

Zone: real.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.handnode import Node

from ottla.requests import Declaration
from ottla.wire.apis import API_TABLE, ApiKey

PAGE = Path(__file__).resolve().parents[2] / "docs" / "skipped.md"


@cache
def declarations() -> dict[str, Declaration]:
    """API → declaration, of all handlers that a whole broker registers."""
    return {API_TABLE[ApiKey(each.api_key)].name: each for each in Node().broker._dispatch.all_declarations()}


def rows(page: str, title: str) -> list[list[str]]:
    """Cells of the tables under the headings that contain `title`."""
    sections = [part for part in re.split(r"^## ", page, flags=re.MULTILINE) if title in part.partition("\n")[0]]
    lines = [line for part in sections for line in part.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if not row[0].startswith(("---", "API"))]


def test_every_api_is_served_or_explained():
    page = PAGE.read_text()
    skipped = [name for row in rows(page, "served") for name in row[0].split(", ")]
    assert sorted([*skipped, *declarations()]) == sorted(api.name for api in API_TABLE.values())


def test_versions_that_are_not_offered_are_explained():
    page = PAGE.read_text()
    explained = {row[0]: row[1] for row in rows(page, "Versions")}
    fewer = {}
    for name, declaration in declarations().items():
        api = API_TABLE[ApiKey(declaration.api_key)]
        if (declaration.min_version, declaration.max_version) != (api.min_version, api.max_version):
            fewer[name] = f"{declaration.min_version}-{declaration.max_version}"
    assert explained == fewer
