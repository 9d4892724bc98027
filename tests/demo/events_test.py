"""The demo's recount, its comparison, and how the result is shown."""

from __future__ import annotations

import io
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.demo import events, show
from ottla.demo.events import WINDOW_MS
from ottla.demo.progress import Progress

paths = st.sampled_from(["a/b.c", "a/x/y.z", "README", "b/c", ".github/x"])
event_lines = st.lists(
    st.builds(
        lambda ts, path, added: json.dumps(
            {"ts": ts, "commit": "c", "ticket": None, "path": path, "added": added, "deleted": 1}
        ).encode(),
        st.integers(0, 4 * WINDOW_MS),
        paths,
        st.integers(0, 9),
    ),
    max_size=20,
)


def test_the_excerpt_is_in_time_order_and_complete() -> None:
    lines = [json.loads(line) for line in events.load_lines()]
    assert len(lines) == 20_000
    assert all(one["ts"] <= two["ts"] for one, two in pairwise(lines))
    assert all(set(line) == {"ts", "commit", "ticket", "path", "added", "deleted"} for line in lines)


@pytest.mark.parametrize(
    ("path", "directory"), [("a/b/c.py", "a"), ("README", "."), (".github/x", ".github"), ("a/", "a")]
)
def test_the_directory_is_the_first_part_of_the_path(path: str, directory: str) -> None:
    assert events.directory_of(path) == directory


@given(event_lines)
def test_every_event_is_counted_in_one_window(lines: list[bytes]) -> None:
    found = events.recount_lines(lines)
    assert sum(count for count, _ in found.counts.values()) == len(lines) == found.lines.total()
    assert sum(changed for _, changed in found.counts.values()) == sum(json.loads(line)["added"] + 1 for line in lines)
    assert all(start % WINDOW_MS == 0 for start, _ in found.counts)


def test_an_event_at_the_edge_belongs_to_the_window_that_begins() -> None:
    line = b'{"ts": %d, "commit": "c", "ticket": null, "path": "a/b", "added": 2, "deleted": 3}'
    counts = events.recount_lines([line % (WINDOW_MS - 1), line % WINDOW_MS]).counts
    assert counts == {(0, "a"): (1, 5), (WINDOW_MS, "a"): (1, 5)}


@given(event_lines, event_lines)
def test_the_comparison_finds_every_difference(one: list[bytes], two: list[bytes]) -> None:
    left, right = events.recount_lines(one).counts, events.recount_lines(two).counts
    different = {place for place in left.keys() | right.keys() if left.get(place) != right.get(place)}
    assert len(events.find_differences(left, right)) == len(different)
    assert events.find_differences(left, left) == []


@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_table_fits_and_adds_up(ascii_only: bool) -> None:
    counts = events.recount_lines(events.load_lines()).counts
    lines = show.table_lines(counts, 100, ascii_only=ascii_only)
    assert all(len(line) <= 100 for line in lines)
    assert len(lines) == 1 + show.TOP + 1
    assert all(line.isascii() for line in lines) == ascii_only
    assert lines[1].startswith("core ")
    assert lines[-1].startswith("28 others")
    assert sum(row.events for row in show.rows_of(counts)) == 20_000


def test_the_table_of_few_directories_has_no_others() -> None:
    lines = show.table_lines({(0, "a"): (3, 9), (WINDOW_MS, "b"): (1, 2)}, 60, ascii_only=True)
    assert [line.split()[:3] for line in lines[1:]] == [["a", "3", "9"], ["b", "1", "2"]]
    assert lines[1].endswith("#")
    assert len(lines[1].split()[3]) > len(lines[2].split()[3])


def test_windows_without_events_are_shown_as_gaps() -> None:
    counts = {(0, "a"): (3, 9), (2 * WINDOW_MS, "a"): (3, 9)}
    assert show.rows_of(counts)[0].by_window == (3, 0, 3)
    assert show.table_lines(counts, 60, ascii_only=True)[1].endswith("# #")


def test_the_document_holds_all_counts() -> None:
    found = show.result_document({(0, "a"): (3, 9)}, {"events": 3, "agrees": True})
    assert json.loads(json.dumps(found)) == {
        "events": 3,
        "agrees": True,
        "counts": [{"window_start_ms": 0, "directory": "a", "events": 3, "lines": 9}],
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_per_step_without_a_terminal() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.begin_step("produce")
    progress.update_step("1 of 2")
    progress.end_step("2 events")
    assert stream.getvalue().startswith("produce 2 events (")
    assert stream.getvalue().count("\n") == 1


def test_progress_is_rewritten_in_a_terminal() -> None:
    stream = Terminal()
    progress = Progress(stream)
    progress.begin_step("produce")
    progress.update_step("1,000 of 2,000")
    progress.end_step("2")
    last = stream.getvalue().rstrip("\n").split("\r")[-1]
    assert last.startswith("\x1b[Kproduce 2 ("), "what was there is erased"


def test_quiet_progress_prints_nothing() -> None:
    stream = Terminal()
    progress = Progress(stream, quiet=True)
    progress.begin_step("produce")
    progress.end_step("2")
    assert stream.getvalue() == ""
