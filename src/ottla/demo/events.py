"""The events of the demo, and the counts that a correct pipeline must produce.

Zone: real. Reads the packaged file. The recount is plain Python over the file, and shares no code with the pipeline, so
that it can find its errors.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from importlib.resources import files
from typing import Final, NamedTuple

EXCERPT: Final = "data/file-changes-20k.jsonl.gz"
WINDOW_MS: Final = 26 * 7 * 86_400_000
"""Half a year of weeks: windows begin at multiples of it since 1970."""
WINDOW: Final = "26 weeks"

Counts = dict[tuple[int, str], tuple[int, int]]
"""(start of the window in ms, directory) → (events, lines added and deleted)."""


class Recount(NamedTuple):
    """The counts of the file itself."""

    counts: Counts
    lines: Counter[tuple[str, str]]
    """How often each (line of the file, directory) occurs."""


def load_lines() -> list[bytes]:
    """The lines of the packaged excerpt, in time order, without line ends."""
    return gzip.decompress((files("ottla") / EXCERPT).read_bytes()).splitlines()


def directory_of(path: str) -> str:
    """The top directory of a path; "." for a file without one."""
    top, slash, _ = path.partition("/")
    return top if slash else "."


def recount_lines(lines: Iterable[bytes]) -> Recount:
    """Count the events of each window and directory, one line at a time."""
    counts: Counts = {}
    seen: Counter[tuple[str, str]] = Counter()
    for line in lines:
        event = json.loads(line)
        directory = directory_of(event["path"])
        place = (event["ts"] // WINDOW_MS * WINDOW_MS, directory)
        events, changed = counts.get(place, (0, 0))
        counts[place] = (events + 1, changed + event["added"] + event["deleted"])
        seen[event_fingerprint(event), directory] += 1
    return Recount(counts, seen)


def event_fingerprint(event: dict[str, object]) -> str:
    """An event as one text, without fields of the pipeline, and independent of the order of its fields."""
    fields = ("ts", "commit", "ticket", "path", "added", "deleted")
    return json.dumps([event.get(field) for field in fields])


def find_differences(recounted: Counts, streamed: Counts) -> list[str]:
    """The differences, one line each; empty when the pipeline's counts are right."""
    found = []
    for start, directory in sorted(recounted.keys() | streamed.keys()):
        right, got = recounted.get((start, directory), (0, 0)), streamed.get((start, directory), (0, 0))
        if right != got:
            found.append(
                f"window {start}, {directory}: the file has {right[0]} events and {right[1]} lines, "
                f"the pipeline {got[0]} and {got[1]}"
            )
    return found
