"""Three brokers, one with a file that was damaged while all were down: committed records must be kept.

Zone: deterministic. Topics with three replicas are loaded. All brokers are stopped one by one, or killed together, so
that all are in sync according to the metadata store. Then one file of one broker is damaged, and they start: the
damaged one first, last, or together with the others.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import NamedTuple

from ottla.replication.partition.partition import Partition
from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.cluster.ledger import Ledger
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.cluster.workload import ClusterWorkload
from ottla.sim.disks.drive import Directory, Drive
from ottla.sim.entropy import Stream, Streams
from ottla.sim.machines.ensemble import Ensemble
from ottla.sim.machines.machine import Death
from ottla.sim.networks.network import Network
from ottla.sim.workload.catalog import Catalog, Role
from ottla.sim.world import SECOND, Timeline
from ottla.types import TopicPartition
from testbench.crash.judge import Facts
from testbench.crash.lookups import read
from testbench.damage import settings
from testbench.damage.harm import Harm, kind_of, strike
from testbench.damage.logs import Case, compare, facts_of, listening

NODES = (1, 2, 3)
CLUSTERED = settings.PROPERTIES | {
    "log.flush.scheduler.interval.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "default.replication.factor": "3",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.backoff.ms": "200",
    "replica.socket.timeout.ms": "2000",
    "controller.socket.timeout.ms": "2000",
}
SESSION_NS = 2 * SECOND
LOADED_NS = 8 * SECOND
ENDED_NS = 30 * SECOND
"""Time after which the sessions of all brokers have expired, and a case begins."""
APART_NS = 4 * SECOND
"""Time between the start of the damaged broker and that of the others."""
LIMIT_NS = 30 * SECOND
STEP_NS = SECOND // 10
REMOVED = 0.15
"""Chance that a file, or the directory of a partition, is removed instead of damaged."""
ORDERS = ("first", "last", "together")


class ClusterBase(NamedTuple):
    """The drives of three brokers, the tree of the metadata store, and the committed records."""

    name: str
    world: bytes
    truth: dict[TopicPartition, Facts]


class _Stage:
    """A world with three brokers."""

    def __init__(self, seed: int, *, follows: bool = False) -> None:
        """`follows`: the ledger receives all changes of the metadata store."""
        self.streams = streams = Streams(seed, "damage/")
        self.timeline = timeline = Timeline()
        self.network = Network(timeline, streams.named_stream("net"))
        self.history = ClusterHistory()
        self.ledger = Ledger(self.history)
        on_commit = self.ledger.follow_changes if follows else None
        self.ensemble = Ensemble(timeline, self.network, streams.named_stream("store"), on_commit)
        world = self.ensemble, self.ledger, SESSION_NS
        self.nodes = [
            ClusterNode(number, timeline, streams, self.network, self.history, CLUSTERED, *world) for number in NODES
        ]

    # -- a world that is kept ------------------------------------------------------------------------------------------

    def kept(self) -> bytes:
        """Drives and metadata, while no broker runs."""
        return pickle.dumps(([node.drives for node in self.nodes], self.ensemble.tree, self.ensemble.zxid), protocol=5)

    def over(self, kept: bytes) -> None:
        """Restore a saved world, at its time."""
        drives: list[list[Drive]]
        drives, _, zxid = pickle.loads(kept)
        for node, own in zip(self.nodes, drives, strict=True):
            node.drives[:] = own
            node.machine.drives[:] = own  # type: ignore[index]
        for copy in (self.ensemble, *self.ensemble.servers):
            copy.tree, copy.zxid = pickle.loads(kept)[1], zxid
        self.timeline.run_until(ENDED_NS)

    # -- brokers -------------------------------------------------------------------------------------------------------

    def replicas(self, tp: TopicPartition) -> dict[int, Partition]:
        """Partitions in service, by broker."""
        found = {}
        for node in self.nodes:
            partition = None if node.broker is None else node.broker.hosted.find_partition(*tp)
            if partition is not None and partition.offline is None:
                found[node.number] = partition
        return found

    def leader(self, tp: TopicPartition) -> int:
        """The leader of the newest epoch; 0: none."""
        led = {number: each for number, each in self.replicas(tp).items() if each.is_leader}
        return max(led, key=lambda number: led[number].leader_epoch, default=0)

    def settled(self, tps: list[TopicPartition], least: int) -> bool:
        """Whether all partitions have a leader and all replicas in sync, with equal, fully committed logs."""
        for tp in tps:
            number, replicas = self.leader(tp), self.replicas(tp)
            if not number or len(replicas) < least or len(replicas[number].isr) < least:
                return False
            ends = {end for each in replicas.values() for end in (each.log.end_offset, each.high_watermark)}
            if len(ends) > 1:
                return False
        return True

    def end(self, *, clean: bool) -> None:
        """Kill all brokers at the same moment, so that all stay in sync."""
        for node in self.nodes:
            if clean:
                _stop(node)
            else:
                node.kill_process(Death.KILL)
        self.timeline.run_until(ENDED_NS)
        assert all(node.machine.process is None for node in self.nodes)


def _stop(node: ClusterNode) -> None:
    """Stop all brokers cleanly, so that no broker is left to take leaderships over."""
    process, broker = node.machine.process, node.broker
    assert process is not None
    assert broker is not None
    process.post_turn(0, "leave", broker.hand_over_leaderships, lambda: node._close_doors(process, broker), False)


def bases(seeds: int = 2) -> Iterator[ClusterBase]:
    """A cluster that was stopped, and one that was killed."""
    for seed in range(1, seeds + 1):
        for clean in (True, False):
            yield _base(seed, clean=clean)


def _base(seed: int, *, clean: bool) -> ClusterBase:
    stage, catalog = _Stage(seed, follows=True), Catalog()
    streams = stage.streams.scoped_streams("workload")
    workload = ClusterWorkload(stage.network, streams, catalog, stage.history, NODES, len(NODES), flush=False)
    for node in stage.nodes:
        node.start_broker()
    workload.start_clients()
    stage.timeline.run_until(LOADED_NS)
    workload.wind_down()
    # A topic with unclean elections has no guarantee.
    topics = [topic for topic in catalog.topics if topic.role is not Role.CUT]
    tps = [TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)]
    done = stage.timeline.run_until_holds(
        lambda: not workload.unacknowledged_logs() and stage.settled(tps, len(NODES)), LOADED_NS, STEP_NS
    )
    assert done, "the load does not settle"
    stage.timeline.run_until(stage.timeline.now_ns + SECOND)
    logs = {tp: stage.replicas(tp)[stage.leader(tp)].log for tp in tps}
    truth = {tp: facts_of(log, read(log, log.start_offset)) for tp, log in logs.items()}
    stage.end(clean=clean)
    return ClusterBase(f"seed {seed}, {'stopped' if clean else 'killed'}", stage.kept(), truth)


def try_one(base: ClusterBase, seed: int, kinds: tuple[str, ...]) -> Case:
    """Damage one file of one broker, start all, and check the outcome."""
    random = Streams(seed).named_stream("harm")
    stage = _Stage(seed)
    stage.over(base.world)
    victim = random.choice(stage.nodes)
    drive = random.choice(victim.drives)
    harm = _remove(drive, random) if random.chance(REMOVED) else strike(drive, random, kinds)
    order = random.choice(ORDERS)
    name = f"{base.name}, broker {victim.number} starts {order}"
    with listening() as lines:
        _start(stage, victim, order)
        stage.timeline.run_until_holds(lambda: stage.settled(list(base.truth), len(NODES)), LIMIT_NS, STEP_NS)
        crashes = [crash for node in stage.nodes for crash in node.machine.crashes]
        if crashes:
            return Case(name, harm, "traceback", [crashes[0]])
        outcome, wrong = _look(stage, base, victim, harm, lines)
    return Case(name, harm, outcome, wrong)


def _remove(drive: Drive, random: Stream) -> Harm | None:
    """Remove the directory of a partition, or one of its files."""
    directories = {name: each for name, each in sorted(drive.root.names.items()) if isinstance(each, Directory)}
    if not directories:
        return None
    name = random.choice(sorted(directories))
    files = sorted(directories[name].names)
    if not files or random.chance(0.3):
        del drive.root.names[name]
        return Harm(name, "directory", "remove", "it is gone")
    file = random.choice(files)
    del directories[name].names[file]
    return Harm(f"{name}/{file}", kind_of(file) or file, "remove", "it is gone")


def _start(stage: _Stage, victim: ClusterNode, order: str) -> None:
    others = [node for node in stage.nodes if node is not victim]
    waves = {"first": ([victim], others), "last": (others, [victim]), "together": (stage.nodes, [])}[order]
    for wave in waves:
        for node in wave:
            node.start_broker()
        stage.timeline.run_until(stage.timeline.now_ns + APART_NS)


def _look(
    stage: _Stage, base: ClusterBase, victim: ClusterNode, harm: Harm | None, lines: list[str]
) -> tuple[str, list[str]]:
    """Check that leaders have all committed records, and the others too, unless a log line reports a loss."""
    outcomes, wrong = {"exact"}, []
    down = victim.broker is None or not victim.broker.ready
    for tp, truth in base.truth.items():
        replicas, leader = stage.replicas(tp), stage.leader(tp)
        told = [line for line in lines if str(tp) in line or "is offline" in line or "cannot start" in line]
        if not leader:
            wrong.append(f"{tp} has no leader")
            continue
        for number in NODES:
            if number not in replicas:
                outcomes.add("offline")
                wrong += [] if told or (down and lines) else [f"{tp} is not on broker {number}, and no line says so"]
                continue
            outcome, problems = compare(replicas[number].log, truth, [], [])
            struck = number == victim.number and harm is not None and harm.kind in (".log", ".index")
            if outcome == "wrong" or (outcome != "exact" and not struck):
                wrong.append(f"{tp} on broker {number}: {outcome}: {problems}")
            elif outcome == "told" and (number == leader or not told):
                wrong.append(f"{tp} on broker {number}, broker {leader} leads: {problems}")
            outcomes.add(outcome)
        if told and len(outcomes) == 1:
            outcomes.add("repaired")
    order = ("wrong", "unseen", "offline", "refused", "told", "repaired", "exact")
    return next(outcome for outcome in order if outcome in outcomes), wrong
