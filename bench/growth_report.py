"""The table of GROWTH.md, from the results in growth.json."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.growth_rows import CONSTANT, Row
from bench.growth_work import Point
from bench.report import number

HEAD = """# Results: growth

Written by `bench/growth.py`; do not edit. Each row is measured at several sizes n. The exponent is the slope of the
cost over n, both as logarithms: 0 is a cost that does not depend on n, 1 one that is linear; what must not grow may
cost twice as much as at the smallest n, too. Costs per element have a goal instead. Beside it another client produces
one small batch every 5 ms with acks=1: its longest wait in ms. Kafka is Apache Kafka 4.4.0, where it was measured:
above 5,000 partitions it was not. The CPU of a broker that is lost is counted until three seconds after all partitions
have leaders. Rows may be of different runs.

Machine: {machine}. Load average: {load}. Written {when}.

| what | unit | n | Ottla | exponent | limit | goal | longest wait | Kafka | its exponent | its wait | verdict |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""
OVER = """
## Rows over a limit

Where their time passes, by profiles of the same work:

"""
PROFILES: dict[str, str] = {
    "create": "others wait for the disk: `mkdir` and `open` of new logs are called in the loop (1 and 0.8 ms here), in "
    "slices of 10 to 16 ms. Syncs are not: they have threads.",
    "bulk": "a directory and three files are made for each partition, as above. The cost of each is the same up to "
    "14,000 partitions.",
    "metadata-first": "nearly all of it is one look at each topic, in slices: whether its bytes are those of the "
    "answer before (`topic_bytes.take_slice`).",
    "fetch": "30 % choose the bytes of each partition (offset index, high watermark), 27 % read them (a `pread` each, "
    "since each partition is a file), 14 % gather them for the socket, 11 % encode the response.",
    "start": "of what grows with the partitions, two thirds load logs (six files are opened and read for each), a "
    "fifth makes partitions leaders, a tenth reads the controller's state.",
    "start-killed": "as after a clean stop, and the last segment of each log is checked from its recovery point on.",
    "churn": "others wait for the disk, as beside one creation: eight clients make and delete logs at once. Beside "
    "other programs (a load of 7) 65 to 69 ms, on a quiet machine 23 ms.",
}
"""Where the time of a row passes, by its key; printed for rows over a limit."""
Points = dict[str, dict[str, list[list[float | None]]]]
"""Row → peer → [size, cost, wait] in the order of sizes."""


class Results:
    """Results of this run and of earlier ones."""

    def __init__(self, directory: Path, rows: Iterable[Row]) -> None:
        self._directory = directory
        self._rows = list(rows)
        self._file = directory / "growth.json"
        self._points: Points = json.loads(self._file.read_text())["rows"] if self._file.exists() else {}
        self._begun: set[tuple[str, str]] = set()
        self.over: list[str] = []
        """Rows of this run that are over a limit."""

    def add(self, peer: str, point: Point) -> None:
        """Add a result, and write the files; the first result of a row drops those of an earlier run."""
        row = self._points.setdefault(point.row, {})
        if (point.row, peer) not in self._begun:
            self._begun.add((point.row, peer))
            row[peer] = []
        row[peer].append([point.size, point.cost, point.wait_ms])
        self.write()

    def write(self) -> None:
        """Write GROWTH.md and growth.json."""
        self._directory.mkdir(parents=True, exist_ok=True)
        text = HEAD.format(
            machine=f"{os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()}",
            load=f"{os.getloadavg()[0]:.1f}",
            when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
        text += "".join(map(self._line, self._rows)) + self._profiles()
        (self._directory / "GROWTH.md").write_text(text)
        self._file.write_text(json.dumps({"rows": self._points}, indent=1) + "\n")
        begun = {row for row, peer in self._begun if peer == "ottla"}
        self.over = [row.key for row in self._rows if row.key in begun and self.verdict(row) == "over"]

    def verdict(self, row: Row) -> str:
        """Whether it is within its limits."""
        points = self._points.get(row.key, {}).get("ottla", [])
        if not points:
            return "not measured"
        slope = exponent(points)
        waits = [wait for _, _, wait in points if wait is not None]
        is_over = (
            (row.exponent is not None and slope is not None and slope > row.exponent and _grew(row, points))
            or (row.goal is not None and max(cost or 0.0 for _, cost, _ in points) > row.goal)
            or (row.wait is not None and bool(waits) and max(waits) > row.wait)
        )
        return "over" if is_over else "within"

    def _profiles(self) -> str:
        """Of each row over a limit: where its time passes."""
        over = [row for row in self._rows if self.verdict(row) == "over"]
        lines = [f"- **{row.title}**: {PROFILES.get(row.key, 'not profiled yet.')}\n" for row in over]
        return OVER + "".join(lines) if lines else ""

    def _line(self, row: Row) -> str:
        measured = self._points.get(row.key, {})
        own, kafka = measured.get("ottla", []), measured.get("kafka", [])
        cells: list[Any] = [
            row.title,
            row.unit,
            " / ".join(f"{size or 0:,g}" for size, _, _ in own) or "–",
            _costs(own),
            _slope(own),
            "–" if row.exponent is None else f"≤ {row.exponent:g}",
            "–" if row.goal is None else f"≤ {row.goal:g}",
            _waits(own) + ("" if row.wait is None else f" (≤ {row.wait:g})"),
            _costs(kafka),
            _slope(kafka),
            _waits(kafka),
            f"**{self.verdict(row)}**",
        ]
        return "| " + " | ".join(cells) + " |\n"


def _grew(row: Row, points: list[list[float | None]]) -> bool:
    """Whether a cost is more than twice that of the smallest size; True for costs that may grow."""
    first, last = points[0][1] or 0.0, points[-1][1] or 0.0
    return row.exponent != CONSTANT or last > 2 * first


def exponent(points: list[list[float | None]]) -> float | None:
    """The slope of cost over size, both as logarithms, by least squares; None: less than two sizes."""
    logs = [(math.log(size), math.log(max(cost, 1e-6))) for size, cost, _ in points if size and cost is not None]
    if len(logs) < 2:
        return None
    middle_x, middle_y = (sum(each) / len(logs) for each in zip(*logs, strict=True))
    spread = sum((x - middle_x) ** 2 for x, _ in logs)
    return sum((x - middle_x) * (y - middle_y) for x, y in logs) / spread if spread else None


def _costs(points: list[list[float | None]]) -> str:
    return " / ".join(number(cost) for _, cost, _ in points) or "–"


def _waits(points: list[list[float | None]]) -> str:
    waits = [wait for _, _, wait in points if wait is not None]
    return number(max(waits)) if waits else "–"


def _slope(points: list[list[float | None]]) -> str:
    slope = exponent(points)
    return "–" if slope is None else f"{slope:.2f}"
