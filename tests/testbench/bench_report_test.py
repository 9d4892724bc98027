"""Reports of benches: rows that are kept of earlier runs are noted with the run that measured them."""

from __future__ import annotations

from pathlib import Path

from bench.report import keep, write
from bench.rows import Row

HEAD = "{runs} {machine} {load} {when} {command}\n"


def run(directory: Path, command: str, **measured: float) -> list[str]:
    """One run of a bench with rows a, b and c, which keeps what it does not measure. Returns its notes."""
    rows = {key: Row(key, key.upper(), "ms", None, None) for key in "abc"}
    for key, value in measured.items():
        rows[key].add("ottla", value)
    notes = keep(rows, measured, directory, "tried")
    write(rows, [], 1, command, directory, name="tried", head=HEAD, notes=notes)
    assert all(row.samples == {"ottla": [now]} for row in rows.values() if (now := measured.get(row.key)))
    return [note.split("`")[1] + note.rpartition(":")[2] for note in notes]


def test_a_kept_row_is_noted_with_the_run_that_measured_it(tmp_path: Path) -> None:
    assert run(tmp_path, "first", a=1, b=2, c=3) == []
    assert run(tmp_path, "second", a=4) == ["first B; C."]
    assert sorted(run(tmp_path, "third", b=5)) == ["first C.", "second A."]
    assert run(tmp_path, "fourth", a=6, c=7) == ["third B."]
    assert run(tmp_path, "fifth", a=6, b=8, c=7) == []
