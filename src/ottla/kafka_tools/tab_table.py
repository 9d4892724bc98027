"""Tables of those tools that separate cells by tabs.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Sequence


def print_tab_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print cells padded to the widest of their column, each followed by a tab."""
    cells = [head, *([str(cell) for cell in row] for row in rows)]
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("".join(f"{cell:<{width}}\t" for cell, width in zip(row, wide, strict=True)))
