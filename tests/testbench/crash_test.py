"""Crash points: the short dose, and that it would notice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from testbench.crash.campaign import run
from testbench.crash.judge import Fate, judge
from testbench.crash.scripts import SCRIPTS
from testbench.crash.story import Story

from ottla.storage.safeguards import Safeguards

NAMES = sorted(SCRIPTS)


def test_there_are_fifty_scripts() -> None:
    assert len(SCRIPTS) == 50


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
    ],
)
def test_without_a_safeguard_something_is_found(switch: str, script: str, fate: Fate) -> None:
    story = Story(SCRIPTS[script], safeguards=replace(Safeguards(), **{switch: False}))
    assert not story.play()
    found = (judge(point, fate, 7, replace(Safeguards(), **{switch: False})) for point in story.points)
    assert any(found)


def test_a_point_is_found_after_every_kind_of_change() -> None:
    story = Story(SCRIPTS["retention"])
    assert not story.play()
    assert set(story.changes) >= {"write", "sync", "create", "rename", "unlink", "sync of names"}
