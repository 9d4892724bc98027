"""Crash points: the short dose, and that it would notice."""

from __future__ import annotations

import zlib

import pytest
from testbench.crash.campaign import run
from testbench.crash.compaction_scripts import COMPACTION
from testbench.crash.judge import Fate, judge
from testbench.crash.move_scripts import MOVES
from testbench.crash.scripts import SCRIPTS
from testbench.crash.story import Point, Story

from ottla.sim.mutants.ablation import without_safeguard

NAMES = sorted(SCRIPTS)


def test_there_are_so_many_scripts() -> None:
    assert (len(SCRIPTS), len(COMPACTION), len(MOVES)) == (87, 22, 15)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_crash_is_recovered_from(part: int) -> None:
    """Every ninth point; `python -m testbench.crash` tries them all."""
    result = run(NAMES[part::4], every=9)
    assert not result.findings, result.findings[:3]
    assert result.points > 50
    assert result.starts == result.points * len(Fate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switch", "script", "fate"),
    [
        ("recovery_scan", "appends", Fate.TORN),
        ("crc_check", "large batches", Fate.REORDERED),
        ("clean_marker_order", "clean stops", Fate.TORN),
        ("fsync_before_recovery_point", "flush after each", Fate.LOST),
        ("names_synced", "flush after each", Fate.LOST),
        ("recovery_point_goes_back", "a cut across segments", Fate.KILLED),
        ("start_before_names", "a log start and retention", Fate.KILLED),
        ("ghosts_forgotten", "a partition comes back after its log start moved", Fate.KILLED),
        ("producers_replayed", "producers", Fate.KILLED),
        ("durable_before_cleaned", "compaction and a marker that is not flushed", Fate.LOST),
        ("cleans_stable_only", "compaction up to an open transaction", Fate.KILLED),
        ("tombstones_stay", "tombstones that stay", Fate.KILLED),
        ("exchange_in_order", "compaction", Fate.REORDERED),
        ("exchange_finished", "compaction", Fate.KILLED),
        ("cleaner_checkpoint_cut", "a cut below what is clean", Fate.KILLED),
    ],
)
def test_without_a_safeguard_something_is_found(switch: str, script: str, fate: Fate) -> None:
    with without_safeguard(switch):
        story = Story(SCRIPTS[script])
        assert not story.play()
        assert any(judge(point, fate, 7) for point in story.points)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "fate", "steps"),
    [
        ("compaction of what is on its way", Fate.LOST, ("clean",)),
        ("compaction of what is on its way", Fate.KILLED, ("clean",)),
        ("compaction and deletion", Fate.KILLED, ("clean",)),
        ("compaction and a marker that is not flushed", Fate.LOST, ("settle",)),
        ("compaction of aborted transactions", Fate.REORDERED, ("clean",)),
        ("a cut during compaction", Fate.KILLED, ("cut 7", "keys 0 1 7")),
        ("compaction", Fate.TORN, ("seal",)),
        ("a move and a log start", Fate.KILLED, ("settle",)),
        ("a move and a log that begins anew", Fate.REORDERED, ("settle",)),
        ("compaction and deletion", Fate.KILLED, ("stop",)),
        ("indexes of a compacted log vanish", Fate.KILLED, ("blind",)),
        ("indexes of a compacted log vanish", Fate.REORDERED, ("clean",)),
        ("a kill during compaction", Fate.REORDERED, ("kill",)),
    ],
)
def test_what_points_have_taught(script: str, fate: Fate, steps: tuple[str, ...]) -> None:
    """Each of these had a point that was not recovered from."""
    story = Story(SCRIPTS[script])
    assert not story.play()
    points = [point for point in story.points if point.step in steps]
    assert points
    assert not [(point.number, found) for point in points if (found := judge(point, fate, _seed(script, point, fate)))]


def _seed(script: str, point: Point, fate: Fate) -> int:
    return zlib.crc32(f"{script}/{point.number}/{fate.value}/1".encode())


def test_a_point_is_found_after_every_kind_of_change() -> None:
    story = Story(SCRIPTS["retention"])
    assert not story.play()
    assert set(story.changes) >= {"write", "sync", "create", "rename", "unlink", "sync of names"}
