"""The table as Markdown, and all samples as JSON."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.rows import Row

HEAD = """# Results

Written by `make bench` (`bench/run.py`); do not edit. CPU is that of the broker's process, from the scheduler's
accounting in ns; medians of {runs} interleaved runs, all brokers alive together, Apache Kafka 4.4.0 warmed up first.
A limit is a multiple of the peer's median in the same run, or absolute where no peer is named. Rows without a limit
show where it comes from: whole frames beside a C program that moves the same bytes and does nothing else, and a
consumer told to ask for more at once (librdkafka by itself pauses for a second while it has 100,000 records in hand).
kfake is franz-go's broker in Go: one process that keeps everything in memory, and writes files besides; rows beside it
have its figure in place of Kafka's.

Machine: {machine}. Load average during the runs: {load}. Measured {when}.
Command: `{command}`

| what | unit | Ottla | Apache Kafka, or kfake | ratio | limit | C floor | × floor | verdict |
|---|---|---|---|---|---|---|---|---|
"""


def number(value: float | None) -> str:
    """Three significant digits, or a dash without a measurement."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _line(row: Row) -> str:
    own, kafka, floor = row.figure("ottla"), row.figure(row.against or "kafka"), row.figure("floor")
    ratio = own / kafka if own is not None and kafka else None
    over_floor = own / floor if own is not None and floor else None
    limit = "–" if row.limit is None else f"≤ {row.limit:g}" + (" ×" if row.against else "")
    cells = [
        row.title,
        row.unit,
        number(own),
        number(kafka),
        number(ratio),
        limit,
        number(floor),
        number(over_floor),
    ]
    return "| " + " | ".join([*cells, f"**{row.verdict}**"]) + " |\n"


def _samples(row: Row) -> str:
    lines = [f"- {row.title} ({row.unit})\n"]
    for peer, values in row.samples.items():
        lines.append(f"  - {peer}: {', '.join(f'{value:.4g}' for value in values)}\n")
    return "".join(lines)


def keep(rows: dict[str, Row], measured: Collection[str], directory: Path, name: str) -> list[str]:
    """Fill rows that are not measured now with the samples in <name>.json. Returns a note for each run they are of."""
    path = directory / f"{name}.json"
    earlier = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    kept: dict[tuple[str, str], list[str]] = {}
    for key, row in rows.items():
        found = earlier["rows"].get(key, {})
        if key not in measured and found.get("samples"):
            row.samples = found["samples"]
            # A row that the earlier run kept itself is of the run before.
            command, when = found.get("kept_from") or (earlier["command"], earlier["when"])
            row.kept_from = command, when
            kept.setdefault(row.kept_from, []).append(row.title)
    newest_first = sorted(kept.items(), key=lambda item: item[0][1], reverse=True)
    return [f"Kept from `{command}`, {when}: {'; '.join(titles)}." for (command, when), titles in newest_first]


def _data(row: Row) -> dict[str, object]:
    found: dict[str, object] = {"samples": row.samples, "limit": row.limit, "verdict": row.verdict}
    return found | ({"kept_from": row.kept_from} if row.kept_from else {})


def write(
    rows: dict[str, Row],
    loads: list[float],
    runs: int,
    command: str,
    directory: Path,
    *,
    name: str = "results",
    head: str = HEAD,
    notes: Sequence[str] = (),
    line: Callable[[Row], str] | None = None,
) -> None:
    """Write <NAME>.md and <name>.json; `head` is the text above the rows, `notes` the text below.

    line: formats a row, where the columns differ from those of `HEAD`.
    """
    load = f"{min(loads):.1f} to {max(loads):.1f}" if loads else "not measured"
    cores = len([line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("processor")])
    whose = "the system's" if sys.base_prefix == "/usr" else "not the system's"
    python = f"Python {platform.python_version()} ({whose})"
    machine = f"{cores} cores, {python}, Linux {platform.release()}"
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = head.format(runs=runs, machine=machine, load=load, when=when, command=command)
    text += "".join((line or _line)(row) for row in rows.values())
    text += "".join(f"\n{note}\n" for note in notes)
    text += "\n## Samples\n\n" + "".join(_samples(row) for row in rows.values() if row.samples)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name.upper()}.md").write_text(text)
    data = {
        "command": command,
        "when": when,
        "notes": list(notes),
        "runs": runs,
        "loads": loads,
        "rows": {key: _data(row) for key, row in rows.items()},
    }
    (directory / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
