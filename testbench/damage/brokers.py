"""A broker on damaged directories: it serves correct data, reports the damage, or refuses to start with a reason.

Zone: deterministic. A single broker with the embedded metadata store and two log directories is loaded, and stopped or
killed; then one file of a directory is damaged, perhaps the journal of the store, and the broker starts again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import NamedTuple

from ottla.sim.disks.drive import Drive
from ottla.sim.entropy import Streams
from ottla.sim.history import History
from ottla.sim.machines.machine import Death
from ottla.sim.machines.node import SimNode
from ottla.sim.networks.network import Network
from ottla.sim.workload.catalog import Catalog
from ottla.sim.workload.workload import Workload
from ottla.sim.world import SECOND, Timeline
from ottla.types import TopicPartition
from testbench.crash.judge import Facts
from testbench.crash.lookups import read
from testbench.damage.harm import JOURNAL, KINDS, strike
from testbench.damage.logs import Case, compare, facts_of, listening, what_is_aborted
from testbench.damage.settings import PROPERTIES

LOADED_NS = 6 * SECOND
START_NS = 30 * SECOND
STEP_NS = SECOND // 20


class BrokerBase(NamedTuple):
    """Directories to damage, and their content."""

    name: str
    drives: bytes
    truth: dict[TopicPartition, Facts]
    aborted: dict[TopicPartition, list[tuple[int, ...]]]


class _Stage:
    """A world with one broker."""

    def __init__(self, seed: int) -> None:
        streams = Streams(seed)
        self.timeline = Timeline()
        self.network = Network(self.timeline, streams.named_stream("net"))
        self.history = History()
        world = self.timeline, streams, self.network, self.history
        self.node = SimNode(0, *world, PROPERTIES)
        self.streams = streams

    def over(self, drives: list[Drive]) -> None:
        """Replace the drives of the broker."""
        self.node.drives[:] = drives
        self.node.machine.drives[:] = drives  # type: ignore[index]

    def start(self) -> bool:
        """Start the broker. True if it serves."""
        self.node.start_broker()
        process = self.node.machine.process
        assert process is not None
        self.timeline.run_until_holds(lambda: process.serving or not process.alive, START_NS, STEP_NS)
        return process.serving and process.alive


def bases(seeds: int = 3) -> Iterator[BrokerBase]:
    """Directories of a broker that was stopped, and of one that was killed."""
    for seed in range(1, seeds + 1):
        for stopped in (True, False):
            stage = _Stage(seed)
            workload = Workload(stage.network, stage.streams.scoped_streams("workload"), Catalog(), stage.history)
            assert stage.start()
            workload.start_clients()
            stage.timeline.run_until(LOADED_NS)
            if stopped:
                stage.node.stop_broker()
                stage.timeline.run_until(LOADED_NS + 10 * SECOND)
                assert stage.node.machine.process is None
            else:
                stage.node.kill_process(Death.KILL)
            yield _base(f"seed {seed}, {'stopped' if stopped else 'killed'}", pickle.dumps(stage.node.drives))


def _base(name: str, drives: bytes) -> BrokerBase:
    stage = _Stage(1)
    stage.over(pickle.loads(drives))
    assert stage.start(), name
    assert stage.node.broker is not None
    logs = {log.tp: log for log in stage.node.broker.logs.online_logs()}
    truth = {tp: facts_of(log, read(log, log.start_offset)) for tp, log in sorted(logs.items())}
    return BrokerBase(name, drives, truth, {tp: what_is_aborted(log) for tp, log in logs.items()})


def try_one(base: BrokerBase, seed: int) -> Case:
    """Damage one file, start the broker, and check the outcome."""
    random = Streams(seed).named_stream("harm")
    stage = _Stage(seed)
    drives: list[Drive] = pickle.loads(base.drives)
    harm = strike(random.choice(drives), random, (JOURNAL, *KINDS))
    stage.over(drives)
    with listening() as lines:
        serves = stage.start()
        crashes = stage.node.machine.crashes
        if crashes:
            return Case(base.name, harm, "traceback", [crashes[0]])
        if not serves:
            return Case(base.name, harm, "offline", [] if lines else ["it does not start, and no line says why"])
        outcome, wrong = _look(stage, base, lines)
    return Case(base.name, harm, outcome, wrong)


def _look(stage: _Stage, base: BrokerBase, lines: list[str]) -> tuple[str, list[str]]:
    broker = stage.node.broker
    assert broker is not None
    outcomes, wrong = {"exact"}, []
    for tp, truth in base.truth.items():
        log = broker.logs.get_log(tp)
        told = [line for line in lines if str(tp) in line or "is offline" in line]
        if log is None:
            outcomes.add("offline")
            wrong += [] if told else [f"{tp} is not there, and no line says so"]
            continue
        outcome, complaints = compare(log, truth, base.aborted[tp], told)
        outcomes.add(outcome)
        wrong += [f"{tp}: {text}" for text in complaints]
    order = ("wrong", "unseen", "offline", "refused", "told", "exact")
    return next(outcome for outcome in order if outcome in outcomes), wrong
