"""Gathers the pages of the documentation site in build/pages, from where they live in the repository.

    python -m tools.site

README becomes the first page. Links between pages are changed to their places there, links to other files lead to the
repository; `mkdocs build --strict` then finds those that lead nowhere.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from typing import Final

from tools.source import ROOT

PAGES: Final = ROOT / "build" / "pages"
REPOSITORY: Final = "https://github.com/ottla/ottla/blob/main/"
_LINK: Final = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
_BLOCK: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LIST: Final = re.compile(r"^(?![ ]*(?:[-*]|\d+\.) |[ ]*$|[ ]{2,}|[|>#])(.+)\n(?=(?:- |1\. ))", re.MULTILINE)
"""A list right after a line of text: Markdown's first dialect, and mkdocs, want an empty line between."""

_INNER: Final = re.compile(r"^  (?=- )", re.MULTILINE)
"""A list in a list, which mkdocs wants four columns in."""


def place_of(source: str) -> str | None:
    """Where a file of the repository is on the site; None: it is not there."""
    if source == "README.md":
        return "index.md"
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    return source if source.endswith(".md") and source.count("/") <= 1 else None


def sources() -> list[str]:
    """The files of the site, as paths in the repository."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.svg")]
    found += ROOT.glob("docs/*.css")
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def convert_page(source: str, text: str) -> str:
    """A page as the site has it; blocks of code are left alone."""
    parts, end = [], 0
    for block in _BLOCK.finditer(text):
        parts += [_convert_prose(source, text[end : block.start()]), block.group()]
        end = block.end()
    return "".join([*parts, _convert_prose(source, text[end:])])


def _convert_prose(source: str, text: str) -> str:
    moved = _LINK.sub(lambda link: link.group(1) + _target(source, link.group(2)) + link.group(3), text)
    return _INNER.sub("    ", _LIST.sub(r"\1\n\n", moved))


def _target(source: str, target: str) -> str:
    """Where a link of a page leads, from the page's place on the site."""
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    here, there = place_of(source), place_of(file)
    if here is None or there is None:
        return REPOSITORY + file
    return posixpath.relpath(there, posixpath.dirname(here) or ".")


def main() -> int:
    """Write build/pages again."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for source in sources():
        place = PAGES / (place_of(source) or source)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / source).read_text(encoding="utf-8")
        place.write_text(convert_page(source, text) if source.endswith(".md") else text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
