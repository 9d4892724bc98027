"""The truth in the metadata store, followed change by change: leaders, in-sync replicas, registrations.

Zone: deterministic. Counts elections, and decides which losses have an excuse:

1. A broker that lost data (power, a failed sync, another disk) is *tainted* for every partition whose ISR it is in,
   until it leaves that ISR. A change of the ISR that was under way at the time may add it later; it is tainted then,
   as well.
2. When the ISR of a partition has tainted brokers only, no replica can restore the records. A loss from the least
   durable offset on is then not a fault of the cluster.
3. Once a broker has come back and registered, the controller has to remove it from every ISR that has another member.
   So its taint is no longer an excuse, unless a new controller has been elected since.
4. When all in-sync replicas that are alive registered after the state was written, the controller cannot know which of
   them has everything. If it elects a tainted one, the loss has an excuse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.networks.wire_client import Route
from ottla.sim.workload.catalog import log_name
from ottla.types import ZERO_UUID, uuid_from_text
from ottla.znodes.tree import Change, Verb

_STATE: Final = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")
_TOPIC: Final = re.compile(r"/brokers/topics/([^/]+)")
_BROKER: Final = re.compile(r"/brokers/ids/(\d+)")
_NO_FLOOR: Final = 1 << 62


@dataclass(slots=True)
class Taint:
    """Data of one partition that a broker lost."""

    floor: int
    """Offsets below were durable."""
    registered_in: int = -1
    """The controller epoch in which the broker came back; -1: it has not yet."""


@dataclass(slots=True)
class Partition:
    """The state of one partition in the store."""

    leader: int = -1
    epoch: int = -1
    isr: tuple[int, ...] = ()
    written: int = 0
    """The transaction of the store that wrote this state."""
    tainted: dict[int, Taint] = field(default_factory=dict)


class Ledger:
    """Follows every change in the store."""

    def __init__(self, history: ClusterHistory, note: Callable[[str], None] = lambda _what: None) -> None:
        self.history = history
        self._note = note
        self.elections = 0
        """Changes of a partition's leader after the first one."""
        self.elections_of: dict[str, int] = {}
        """Elections by topic."""
        self.controller_epoch = 0
        self.controllers = 0
        """How many controllers were elected."""
        self.controller = -1
        """The present controller; -1: none."""
        self.partitions: dict[Route, Partition] = {}
        self.replicas: dict[Route, tuple[int, ...]] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.alive: dict[int, int] = {}
        """Registered brokers, with the transaction of the store that registered them."""
        self._transactions = 0
        self._losses: dict[int, dict[str, int]] = {}
        """Losses of brokers that have not registered again: by broker and log, the lowest offset that may be lost."""

    def log_of_route(self, route: Route) -> str:
        """The name of a partition's log in the history."""
        return log_name(*route, self.topic_ids.get(route[0], ZERO_UUID))

    # ---- the store ----

    def follow_changes(self, changes: Sequence[Change]) -> None:
        """Apply one committed transaction of the store."""
        self._transactions += 1
        for change in changes:
            if change.verb in (Verb.CREATE, Verb.PUT):
                self._on_written(change)
            elif change.verb is Verb.DELETE:
                self._on_deleted(change.path)

    def _on_written(self, change: Change) -> None:
        if change.path == "/controller_epoch":
            self.controller_epoch = int(change.data or b"0")
        elif change.path == "/controller":
            self.controllers += 1
            self.controller = int(_parse_object(change.data).get("brokerid", -1))
            self._note(f"store: broker {self.controller} is controller")
        elif match := _BROKER.fullmatch(change.path):
            self._on_registered(int(match[1]))
        elif match := _STATE.fullmatch(change.path):
            self._on_partition_state((match[1], int(match[2])), _parse_object(change.data))
        elif match := _TOPIC.fullmatch(change.path):
            self._on_topic(match[1], _parse_object(change.data))

    def _on_deleted(self, path: str) -> None:
        if path == "/controller":
            self.controller = -1
            self._note("store: no controller")
        elif match := _BROKER.fullmatch(path):
            self.alive.pop(int(match[1]), None)
            self._note(f"store: broker {match[1]} is gone")
        elif match := _STATE.fullmatch(path):
            self.partitions.pop((match[1], int(match[2])), None)
        elif match := _TOPIC.fullmatch(path):
            for route in [route for route in self.replicas if route[0] == match[1]]:
                del self.replicas[route]

    def _on_topic(self, name: str, node: Mapping[str, Any]) -> None:
        text = node.get("topic_id")
        if isinstance(text, str):
            self.topic_ids[name] = uuid_from_text(text)
        for partition, replicas in node.get("partitions", {}).items():
            self.replicas[name, int(partition)] = tuple(replicas)

    def _on_partition_state(self, route: Route, node: Mapping[str, Any]) -> None:
        partition = self.partitions.setdefault(route, Partition())
        leader, epoch = int(node.get("leader", -1)), int(node.get("leader_epoch", -1))
        if partition.epoch >= 0 and leader != partition.leader and leader >= 0:
            self.elections += 1
            self.elections_of[route[0]] = self.elections_of.get(route[0], 0) + 1
        # The order matters: case 4 compares registrations with the state before this one; then taints follow the new
        # ISR; and only then all of its members can be tainted.
        self._look_for_ignorance(route, partition, leader)
        partition.leader, partition.epoch, partition.written = leader, epoch, self._transactions
        partition.isr = tuple(node.get("isr", ()))
        self._note(f"store: {route[0]}-{route[1]} leader {leader} epoch {epoch} isr {partition.isr}")
        for broker in [broker for broker in partition.tainted if broker not in partition.isr]:
            del partition.tainted[broker]
        for broker in partition.isr:
            floor = self._losses.get(broker, {}).get(self.log_of_route(route))
            if floor is not None and broker not in partition.tainted:
                partition.tainted[broker] = Taint(floor)
        self._look_for_excuse(route, partition)

    def _on_registered(self, broker: int) -> None:
        # Its losses still taint the partitions whose ISR it is in. An ISR that takes it in from now on gets a replica
        # that has caught up.
        self.alive[broker] = self._transactions
        self._losses.pop(broker, None)
        self._note(f"store: broker {broker} registered")
        for partition in self.partitions.values():
            taint = partition.tainted.get(broker)
            if taint is not None and self.controller >= 0:
                taint.registered_in = self.controller_epoch

    # ---- losses ----

    def on_undurable_loss(self, broker: int, floors: Mapping[str, int]) -> None:
        """A broker lost data that was not durable. Logs with flush.messages=1 get no excuse from that."""
        self.on_data_loss(broker, {log: floor for log, floor in floors.items() if log not in self.history.flushed})

    def on_data_loss(self, broker: int, floors: Mapping[str, int]) -> None:
        """A broker lost data. `floors` has, for each log with a loss, the offset below which everything is kept."""
        losses = self._losses.setdefault(broker, {})
        for log, floor in floors.items():
            losses[log] = min(floor, losses.get(log, _NO_FLOOR))
        for route, partition in self.partitions.items():
            floor = floors.get(self.log_of_route(route), _NO_FLOOR)
            if broker in partition.isr and floor < _NO_FLOOR:
                before = partition.tainted.get(broker)
                partition.tainted[broker] = Taint(floor if before is None else min(floor, before.floor))
                self._look_for_excuse(route, partition)

    def _look_for_excuse(self, route: Route, partition: Partition) -> None:
        taints = [partition.tainted.get(broker) for broker in partition.isr]
        floors = [taint.floor for taint in taints if taint is not None and self._taint_excuses(taint)]
        if floors and len(floors) == len(partition.isr):
            self._add_excuse(route, min(floors))

    def _add_excuse(self, route: Route, floor: int) -> None:
        log = self.log_of_route(route)
        self._note(f"store: no known in-sync replica of {log} has what was lost from {floor} on")
        self.history.excused[log] = min(floor, self.history.excused.get(log, _NO_FLOOR))

    def _look_for_ignorance(self, route: Route, partition: Partition, leader: int) -> None:
        """Excuse an election of a tainted broker if every live in-sync replica registered after the last state."""
        taint = partition.tainted.get(leader)
        known = [broker for broker in partition.isr if self.alive.get(broker, self._transactions) < partition.written]
        if taint is not None and not set(known) - set(partition.tainted):
            self._add_excuse(route, taint.floor)

    def _taint_excuses(self, taint: Taint) -> bool:
        return taint.registered_in != self.controller_epoch

    def would_be_lost(self, broker: int) -> bool:
        """Whether a loss of data on that broker now could leave a partition without a complete replica."""
        return any(
            broker in partition.isr
            and all(other == broker or other in partition.tainted or other not in self.alive for other in partition.isr)
            for partition in self.partitions.values()
        )


def _parse_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
