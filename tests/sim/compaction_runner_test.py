"""Whole clusters with compacted topics: deleted keys stay deleted, and a missing safeguard is detected.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.sim.cluster.checkers import BESIDE
from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.compaction.runner import CompactionOptions, CompactionResult, find_violations
from ottla.sim.history import Outcome, Write, pack_record, unpack_record
from ottla.sim.report import replay_command, result_lines, result_value
from ottla.sim.swarm import run_seed

LOG = "keyed-0@id"
SEEDS, SECONDS = 20, 20


# -- the checker -------------------------------------------------------------------------------------------------------


def history(*writes: tuple[str, Outcome], **shown: str | None) -> ClusterHistory:
    """Batches of one record, `key=value`, and the content of broker 1 at the end."""
    found = ClusterHistory(compacted={LOG: 1000}, rewritten={LOG: 0})
    for text, outcome in writes:
        found.writes.append(Write("p", LOG, [text.encode()], -1, 7, 0, 0, 0, 0, outcome, 0, 1, 1))
    found.shown[LOG, 1] = {key.encode(): value and value.encode() for key, value in shown.items()}
    return found


OK, INFO, FAIL = Outcome.OK, Outcome.INFO, Outcome.FAIL


@pytest.mark.parametrize(
    ("writes", "shown"),
    [
        ([("a=1", OK), ("a=2", OK)], {"a": "2"}),
        ([("a=1", OK), ("a=", OK)], {}),
        ([("a=1", OK), ("a=", OK)], {"a": None}),
        ([("a=1", OK), ("a=2", INFO)], {"a": "1"}),
        ([("a=1", OK), ("a=2", INFO)], {"a": "2"}),
        ([("a=1", INFO)], {}),
        ([("a=1", INFO)], {"a": "1"}),
        ([("a=1", OK), ("a=2", FAIL)], {"a": "1"}),
    ],
)
def test_what_may_be_shown(writes: list[tuple[str, Outcome]], shown: dict[str, str | None]) -> None:
    assert find_violations(history(*writes, **shown)) == []


@pytest.mark.parametrize(
    ("writes", "shown", "text"),
    [
        ([("a=1", OK), ("a=", OK)], {"a": "1"}, "shows b'1' of the deleted key a"),
        ([("a=1", OK), ("a=2", OK)], {"a": "1"}, "shows b'1' of the key a, the last was b'2'"),
        ([("a=1", OK)], {}, "shows None of the key a"),
        ([("a=1", FAIL)], {"a": "1"}, "shows b'1' of the deleted key a"),
        ([], {"a": "1"}, "of the deleted key a"),
    ],
)
def test_what_may_not(writes: list[tuple[str, Outcome]], shown: dict[str, str | None], text: str) -> None:
    ((name, sentence),) = find_violations(history(*writes, **shown))
    assert name == "latest_is_shown"
    assert text in sentence


def test_a_log_that_lost_data_with_an_excuse_is_not_judged() -> None:
    found = history(("a=1", OK))
    found.excused[LOG] = 0
    assert find_violations(found) == []


def test_records_travel_as_one_text() -> None:
    assert unpack_record(pack_record(b"k", b"v=w")) == (b"k", b"v=w")
    assert unpack_record(pack_record(b"k", None)) == (b"k", None)


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_is_clean_compacts_and_is_the_same_again() -> None:
    options = CompactionOptions(seconds=SECONDS)
    result = run_seed(1, options)
    assert isinstance(result, CompactionResult)
    assert result.ok, result.violations
    assert result.keys > 100
    assert result.written > 3 * result.kept
    assert run_seed(1, options).trace_hash == result.trace_hash
    assert replay_command(result, options) == "ottla sim --compaction --seed 1 --seconds 20"
    assert f"compacted     {result.written:,} records to {result.kept:,}" in "\n".join(result_lines(result, options))
    assert result_value(result)["keys"] == result.keys


@pytest.mark.slow
def test_deleted_keys_come_back_when_replicas_do_not_wait_for_each_other() -> None:
    options = CompactionOptions(without="replication.all_have_cleaned", seconds=SECONDS)
    for seed in range(1, SEEDS + 1):
        found = run_seed(seed, options).violations
        if any(name not in BESIDE and "deleted key" in sentence for name, sentence in found):
            return
    pytest.fail(f"{SEEDS} seeds noticed nothing")
