"""The nemesis of a cluster: every kind of fault strikes, is healed, and depends on the seed only.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.sim.cluster.nemesis import ALWAYS
from ottla.sim.cluster.runner import ClusterOptions, ClusterRun, fault_kinds
from ottla.sim.disks.drive import NO_LIMIT
from ottla.sim.entropy import Stream
from ottla.sim.transactions.admin import REPLACED, STATE
from ottla.sim.transactions.runner import TransactionOptions, TransactionRun
from ottla.sim.world import SECOND


def started(seed=3, brokers=3) -> ClusterRun:
    run = ClusterRun(seed, ClusterOptions(brokers=brokers))
    for node in run.nodes:
        node.start_broker()
    run.workload.start_clients()
    run.nemesis.active = True
    run.timeline.run_until(3 * SECOND)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", fault_kinds())
def test_every_kind_strikes_and_is_healed(kind):
    run = started()
    deed = run.nemesis.deeds.get(kind)
    if deed is None:
        assert kind == "power loss of all", "only where acknowledged means durable"
        return
    for number in range(6):
        deed(Stream(number, kind))
        run.timeline.run_until(run.timeline.now_ns + SECOND)
    run.nemesis.heal_faults()
    run.timeline.run_until(run.timeline.now_ns + 20 * SECOND)
    for node in run.nodes:
        assert node.machine.process is not None
        assert not any(faults.broken or faults.armed for faults in node.faults)
        assert all(drive.capacity == NO_LIMIT for drive in node.drives)
    assert not any(node.machine.crashes for node in run.nodes)


@pytest.mark.slow
def test_a_coordinator_is_replaced_whose_markers_are_late():
    run = TransactionRun(3, TransactionOptions(brokers=3))
    for node in run.nodes:
        node.start_broker()
    run.workload.start_clients()
    run.nemesis.active = True
    run.timeline.run_until(8 * SECOND)
    assert run.ledger.elections_of.get(STATE, 0) == 0
    for number in range(3):
        run.nemesis.deeds[REPLACED](Stream(number, REPLACED))
        run.timeline.run_until(run.timeline.now_ns + 2 * SECOND)
    assert run.ledger.elections_of[STATE] > 0
    assert set(run.ledger.alive) == {1, 2, 3}, "all brokers are still registered"


def test_the_plan_comes_from_the_seed_alone():
    one, two = ClusterRun(5, ClusterOptions()), ClusterRun(5, ClusterOptions())
    assert one.strikes == two.strikes
    assert one.strikes != ClusterRun(6, ClusterOptions()).strikes
    assert set(ALWAYS) <= {kind for kind, _ in one.nemesis.mix}


def test_a_run_can_be_repeated_with_some_of_its_strikes():
    whole = ClusterRun(5, ClusterOptions()).strikes
    some = ClusterRun(5, ClusterOptions(strikes=(1, 3))).strikes
    assert some == [whole[1], whole[3]]


def test_mixes_differ():
    assert len({tuple(ClusterRun(seed, ClusterOptions()).nemesis.mix) for seed in range(6)}) == 6


def test_chosen_kinds_are_the_only_ones_and_the_rest_of_the_run_stays():
    chosen = ClusterRun(5, ClusterOptions(kinds=("kill", "slow link")))
    assert {strike.kind for strike in chosen.strikes} == {"kill", "slow link"}
    assert chosen.numbers == ClusterRun(5, ClusterOptions()).numbers
    unknown_here = ClusterRun(5, ClusterOptions(kinds=("never heard of",)))
    assert unknown_here.strikes == []
