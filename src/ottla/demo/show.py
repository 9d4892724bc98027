"""The demo's result as text: a table with bars, and as JSON.

Zone: pure. Turns numbers into lines, without colours, and in ASCII if the terminal has only that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.demo.events import WINDOW_MS, Counts

Fact = str | int | float | bool | list[str]

TOP: Final = 15
"""Directories that get a line of their own."""
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_BLOCKS_ASCII: Final = ".:-=+*%#"


class Row(NamedTuple):
    """The counts of a directory in all windows."""

    directory: str
    events: int
    changed: int
    by_window: tuple[int, ...]


def rows_of(counts: Counts) -> list[Row]:
    """One row per directory, that with the most events first."""
    windows = window_starts(counts)
    directories = sorted({directory for _, directory in counts})
    rows = []
    for directory in directories:
        here = [counts.get((start, directory), (0, 0)) for start in windows]
        by_window = tuple(events for events, _ in here)
        rows.append(Row(directory, sum(by_window), sum(changed for _, changed in here), by_window))
    return sorted(rows, key=lambda row: (-row.events, row.directory))


def window_starts(counts: Counts) -> list[int]:
    """All windows from the first to the last one with an event."""
    starts = [start for start, _ in counts]
    return list(range(min(starts), max(starts) + 1, WINDOW_MS)) if starts else []


def table_lines(counts: Counts, width: int, *, ascii_only: bool) -> list[str]:
    """A line per directory: name, events, changed lines, a bar of the events, and a small chart of the windows."""
    rows = rows_of(counts)
    shown = [*rows[:TOP], *_sum_others(rows[TOP:])]
    names = max([9, *(len(row.directory) for row in shown)])
    windows = len(window_starts(counts))
    room = max(8, width - names - windows - 23)
    most = max([1, *(row.events for row in shown)])
    lines = [f"{'directory':<{names}}  {'events':>6}  {'lines':>9}  {'':<{room}}  per half year", ""]
    for row in shown:
        bar = ("#" if ascii_only else "█") * max(1, round(row.events * room / most))
        picture = _draw_chart(row.by_window, _BLOCKS_ASCII if ascii_only else _BLOCKS)
        lines.append(
            f"{row.directory:<{names}}  {row.events:>6,}  {row.changed:>9,}  {bar:<{room}}  {picture}".rstrip()
        )
    return [lines[0].rstrip(), *lines[2:]]


def _sum_others(rows: list[Row]) -> list[Row]:
    if not rows:
        return []
    by_window = tuple(sum(column) for column in zip(*(row.by_window for row in rows), strict=True))
    name = f"{len(rows)} others"
    return [Row(name, sum(row.events for row in rows), sum(row.changed for row in rows), by_window)]


def _draw_chart(numbers: tuple[int, ...], blocks: str) -> str:
    """One character per number, whose height is its share of the largest; a space for 0."""
    most = max([1, *numbers])
    return "".join(blocks[-(-number * len(blocks) // most) - 1] if number else " " for number in numbers)


def result_document(counts: Counts, facts: Mapping[str, Fact]) -> dict[str, Fact | list[dict[str, Fact]]]:
    """The result as JSON: the facts, and a list of all counts."""
    listed: list[dict[str, Fact]] = [
        {"window_start_ms": start, "directory": directory, "events": events, "lines": changed}
        for (start, directory), (events, changed) in sorted(counts.items())
    ]
    return {**facts, "counts": listed}
