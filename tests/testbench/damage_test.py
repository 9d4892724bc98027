"""Damage at rest: the short dose, and what it stands on."""

from __future__ import annotations

import pytest
from testbench.crash.scripts import SCRIPTS
from testbench.crash.story import Story
from testbench.damage import clusters
from testbench.damage.campaign import run
from testbench.damage.harm import HARMS, JOURNAL, KINDS, kind_of, strike

from ottla.sim.entropy import Streams
from ottla.sim.mutants.ablation import without_safeguard


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_damage_is_never_believed(part: int) -> None:
    """`python -m testbench.damage` tries as many as there is time for."""
    result = run(500, seed=1 + part * 500)
    assert not result.findings, result.findings[:3]
    assert sum(result.outcomes.values()) == 500
    outcomes = {outcome for _, outcome in result.outcomes}
    assert {"exact", "told", "refused", "offline"} <= outcomes
    assert sum(count for (_, outcome), count in result.outcomes.items() if outcome == "unseen") < 5


@pytest.mark.slow
def test_a_broker_over_damaged_directories_serves_what_is_right_or_says_what_is_not() -> None:
    result = run(60, level="broker")
    assert not result.findings, result.findings[:3]
    assert {outcome for _, outcome in result.outcomes} >= {"exact", "told", "offline"}
    assert any(kind == JOURNAL for kind, _ in result.outcomes)


@pytest.mark.slow
def test_what_a_cluster_has_committed_outlives_the_damage_of_one_replica() -> None:
    result = run(20, level="cluster", seed=100)
    assert not result.findings, result.findings[:3]
    assert {outcome for _, outcome in result.outcomes} >= {"exact", "repaired"}


@pytest.mark.slow
def test_without_its_safeguard_a_damaged_replica_leads_and_the_others_cut_theirs() -> None:
    worlds = list(clusters.bases(1))
    cases = ((Streams(seed).named_stream("base").choice(worlds), seed, (".log",)) for seed in range(100, 200))
    with without_safeguard("losses_told"):
        assert any(clusters.try_one(*case).wrong for case in cases)


def test_every_kind_of_file_is_struck_in_every_way() -> None:
    story = Story(SCRIPTS["a clean stop of much"])
    assert not story.play()
    (drive,) = story.site.drives
    struck = [strike(drive, Streams(seed).named_stream("harm")) for seed in range(300)]
    assert {harm.harm for harm in struck if harm} == set(HARMS)
    there = {kind_of(path) for path, _ in drive.walk_files()} & set(KINDS)
    assert {harm.kind for harm in struck if harm} >= there - {"cleaner-offset-checkpoint"}
    assert len(there) >= 9
