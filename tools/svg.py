"""Primitives of the drawings: boxes, cells of a log, arrows and words on a canvas, as SVG text.

A label that does not fit into its box, or a shape outside of the canvas, is an error: it would show only in a browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

SIZE: Final = 14
CHARACTER: Final = 0.5
"""Width of an average letter of a sans-serif face, in sizes."""
COLORS: Final = {
    # fill, border, words
    "plain": ("#ffffff", "#455a64", "#263238"),
    "main": ("#b2dfdb", "#00695c", "#004d40"),
    "soft": ("#eceff1", "#90a4ae", "#546e7a"),
    "warn": ("#ffe0b2", "#ef6c00", "#bf360c"),
    "bad": ("#ffcdd2", "#c62828", "#b71c1c"),
}
INK: Final = "#37474f"
PAPER: Final = "#fafafa"
HALO: Final = f' stroke="{PAPER}" stroke-width="5" paint-order="stroke"'
"""Around words that lie on the paper, so that a line behind them does not cross them."""


class Canvas:
    """One drawing. Coordinates are pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width = width
        self.height = height
        self._title = title
        self._shapes: list[str] = []

    def box(self, x: int, y: int, width: int, height: int, label: str = "", look: str = "plain") -> None:
        """A rectangle with its label in the middle; lines are separated by newlines."""
        self._check_inside(x, y, x + width, y + height)
        fill, border, words = COLORS[look]
        self._shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{fill}" stroke="{border}"/>'
        )
        lines = label.split("\n") if label else []
        for number, line in enumerate(lines):
            if measure(line) > width:
                raise ValueError(f"{line!r} is wider than its box")
            middle = y + height / 2 + (number - (len(lines) - 1) / 2) * (SIZE + 3)
            self._put_text(x + width / 2, middle + SIZE * 0.35, line, "middle", words)

    def cells(self, x: int, y: int, labels: Sequence[str], look: str = "plain", width: int = 34) -> None:
        """Records of a log, side by side."""
        for number, label in enumerate(labels):
            self.box(x + number * width, y, width, 30, label, look)

    def text(self, x: int, y: int, words: str, anchor: str = "start", look: str = "plain") -> None:
        """A line of words; y is its base line."""
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * measure(words)
        self._check_inside(left, y - SIZE, left + measure(words), y)
        self._put_text(x, y, words, anchor, COLORS[look][2], HALO)

    def arrow(self, start: tuple[int, int], end: tuple[int, int], label: str = "", *, dashed: bool = False) -> None:
        """A line with a point at its end; the label is above its middle."""
        self._check_inside(*start, *end)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._shapes.append(
            f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="{INK}" stroke-width="1.5"'
            f'{dashes} marker-end="url(#point)"/>'
        )
        if label:
            self.text((start[0] + end[0]) // 2, (start[1] + end[1]) // 2 - 6, label, "middle")

    def mark(self, x: int, top: int, bottom: int, label: str) -> None:
        """A vertical, dashed line with a word under it."""
        self._check_inside(x, top, x, bottom + SIZE + 4)
        self._shapes.append(
            f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" stroke="{INK}" stroke-width="1.5" '
            'stroke-dasharray="4 3"/>'
        )
        self.text(x, bottom + SIZE + 2, label, "middle")

    def render(self) -> str:
        """The whole file."""
        shapes = "\n".join(self._shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="Helvetica, Arial, sans-serif" font-size="{SIZE}">\n'
            f"<title>{escape(self._title)}</title>\n"
            '<defs><marker id="point" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="6" fill="{PAPER}"/>\n{shapes}\n</svg>\n'
        )

    def _put_text(self, x: float, y: float, words: str, anchor: str, color: str, halo: str = "") -> None:
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}"{halo}'
        self._shapes.append(f"<text {place}>{escape(words)}</text>")

    def _check_inside(self, left: float, top: float, right: float, bottom: float) -> None:
        across = 0 <= min(left, right) <= max(left, right) <= self.width
        down = 0 <= min(top, bottom) <= max(top, bottom) <= self.height
        if not (across and down):
            raise ValueError(f"outside of the canvas: {left, top, right, bottom}")


def measure(words: str) -> float:
    """About how wide words are, in pixels."""
    return len(words) * SIZE * CHARACTER
