"""The site: links of pages lead to files, every page is in the menu, pictures are current and their text fits.

`make docs` builds the site, and checks anchors as well.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools import drawings, site
from tools.svg import Canvas

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)")
MARKDOWN = [source for source in site.sources() if source.endswith(".md")]


@pytest.mark.parametrize("source", MARKDOWN)
def test_links_of_a_page_lead_to_files(source: str) -> None:
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", (ROOT / source).read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in LINK.findall(prose):
        assert ((ROOT / source).parent / target).exists(), f"{source} links {target}"


def test_every_page_is_in_the_menu_once() -> None:
    menu = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(menu) == sorted(str(site.place_of(source)) for source in MARKDOWN)


@pytest.mark.parametrize(
    ("source", "text", "converted"),
    [
        ("README.md", "[a](docs/cli.md#x) [b](bench/RESULTS.md)", "[a](cli.md#x) [b](bench/RESULTS.md)"),
        ("docs/guarantees.md", "[a](../bench/HOSTILE.md) [b](cluster.md#s)", "[a](bench/HOSTILE.md) [b](cluster.md#s)"),
        ("bench/SPARK.md", "[a](../docs/pyspark.md) [b](../README.md)", "[a](../pyspark.md) [b](../index.md)"),
        ("docs/cli.md", "[a](../LICENSE) [b](#here)", f"[a]({site.REPOSITORY}LICENSE) [b](#here)"),
        ("docs/cli.md", "[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        ("docs/cli.md", "words:\n- one\n- two\n", "words:\n\n- one\n- two\n"),
        ("docs/cli.md", "- one\n  more\n- two\n", "- one\n  more\n- two\n"),
        ("bench/CLIENTS.md", "- one\n  - a\n- two\n", "- one\n    - a\n- two\n"),
        ("docs/cli.md", "```\n[a](../LICENSE)\nx\n- y\n```", "```\n[a](../LICENSE)\nx\n- y\n```"),
    ],
)
def test_pages_are_converted(source: str, text: str, converted: str) -> None:
    assert site.convert_page(source, text) == converted


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_a_picture_is_current(name: str) -> None:
    text = drawings.DRAWINGS[name]().render()
    assert drawings.is_current(drawings.PICTURES / name, text), "run `make reference`"


def test_every_picture_is_on_a_page() -> None:
    pages = "".join((ROOT / source).read_text() for source in MARKDOWN)
    assert sorted(path.name for path in drawings.PICTURES.iterdir()) == sorted(drawings.DRAWINGS)
    assert [name for name in drawings.DRAWINGS if f"pictures/{name})" not in pages] == []


def test_text_that_does_not_fit_a_picture_is_refused() -> None:
    canvas = Canvas(100, 50, "small")
    with pytest.raises(ValueError, match="wider than its box"):
        canvas.box(0, 0, 20, 20, "too many words for it")
    with pytest.raises(ValueError, match="outside of the canvas"):
        canvas.text(90, 20, "words")
    with pytest.raises(ValueError, match="outside of the canvas"):
        canvas.arrow((0, 0), (100, 60))
