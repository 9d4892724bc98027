"""Store access for the controller: reads that are repeated until the store answers, epoch-checked writes.

Zone: deterministic. The callers decide what to write. Every write is a multi that begins with a check of the version of
/controller_epoch, which the next controller changes. A conflict does not show which condition failed: the epoch node is
read and compared.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ottla.changes import changes_state
from ottla.cluster.controller.channel import BrokerChannels
from ottla.cluster.controller.context import NOT_STORED, ControllerContext
from ottla.cluster.controller.elections import Elected
from ottla.cluster.controller.metrics import Counters
from ottla.cluster.image import PartitionImage
from ottla.cluster.store.layout import (
    CONTROLLER_EPOCH,
    BrokenNode,
    StateNode,
    decode_state,
    encode_state,
    partition_path,
    state_path,
)
from ottla.cluster.store.watches import OnChange, WatchedStore
from ottla.cluster.store.workflow import Workflow, submit_multi, submit_multis, wait_for_answer
from ottla.cluster.store.workflow import read_children as ask_children
from ottla.cluster.store.workflow import read_node as ask_get
from ottla.cluster.store.workflow import read_nodes as ask_all
from ottla.config.broker import BrokerConfig
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Clock, Entropy, Failure, Kind, Node, Op
from ottla.types import TopicPartition

logger = logging.getLogger(__name__)

CHUNK: Final = 500
"""Partitions that are processed in one turn."""
STEP: Final = 250
"""Partition states per multi, and nodes read at once: a few milliseconds of work."""
VOLLEY: Final = 2
"""Multis in flight at once."""
MAX_TRIES: Final = 20
"""How often one state is decided again because another writer changed it."""
RETRY_MS: Final = 100
"""Delay before a request is repeated that the store did not answer."""
_TRANSIENT: Final = (Kind.UNKNOWN, Kind.NOT_DONE, Kind.TIMEOUT)

StateDecision = Callable[[TopicPartition, PartitionImage], Elected | None]
"""The next state of a partition, None: as it is."""


class ControllerTerm(NamedTuple):
    """One term of a controller: its number, its epoch, and the version of the epoch's node, which fences its writes."""

    node_id: int
    epoch: int
    epoch_version: int


class _Change(NamedTuple):
    tp: TopicPartition
    after: PartitionImage
    unclean: bool
    data: bytes


class PartitionStateStore:
    """One controller's access to the store, with its state and its channels."""

    def __init__(
        self,
        office: ControllerTerm,
        store: WatchedStore,
        clock: Clock,
        entropy: Entropy,
        purgatory: Purgatory,
        config: Callable[[], BrokerConfig],
        context: ControllerContext,
        channels: BrokerChannels,
        counters: Counters,
    ) -> None:
        self.term = office
        self.store = store
        self.clock = clock
        self.entropy = entropy
        self.purgatory = purgatory
        self.config = config
        self.context = context
        self.channels = channels
        self.counters = counters
        self.closed = False
        self._has_parent: dict[TopicPartition, None] = {}
        """Partitions whose state node is missing while its parent exists."""

    def check_term(self) -> None:
        """Raise ApiError NOT_CONTROLLER after the end of the term: workflows that still run must not act."""
        if self.closed:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller any more")

    def new_uuid(self) -> bytes:
        """16 random octets in the form of a version 4 UUID, which Kafka's own ids have."""
        octets = bytearray(self.entropy.random_bytes("uuids", 16))
        # RFC 9562: the upper four bits of octet 6 are the version, 4; the upper two bits of octet 8 are the variant,
        # binary 10.
        octets[6] = octets[6] & 0x0F | 0x40
        octets[8] = octets[8] & 0x3F | 0x80
        return bytes(octets)

    # -- reading -----------------------------------------------------------------------------------------------

    def yield_turn(self, ms: int = 1) -> Workflow[None]:
        """Continue in a later turn, so that other work runs in between."""
        yield from wait_for_answer(
            lambda answered: _do_nothing(self.purgatory.continue_after(ms, lambda: answered(None)))
        )
        self.check_term()

    def each_chunk(
        self, tps: Sequence[TopicPartition], act: Callable[[Sequence[TopicPartition]], None]
    ) -> Workflow[None]:
        """Call `act` with chunks of these partitions, one chunk per turn."""
        for start in range(0, len(tps), CHUNK):
            act(tps[start : start + CHUNK])
            if start + CHUNK < len(tps):
                yield from self.yield_turn()

    def read_node(self, path: str, on_change: OnChange | None = None) -> Workflow[Node | None]:
        """Read one node. Raises Failure only when the session is lost for good."""
        while True:
            try:
                found = yield from ask_get(path, on_change)
            except Failure as failure:
                yield from self._wait_or_raise(failure.as_value())
            else:
                self.check_term()
                return found

    def read_children(self, path: str, on_change: OnChange | None = None) -> Workflow[Sequence[str]]:
        """Read the names of a node's children, sorted."""
        while True:
            try:
                names = yield from ask_children(path, on_change)
            except Failure as failure:
                yield from self._wait_or_raise(failure.as_value())
            else:
                self.check_term()
                return names

    def read_nodes(
        self, paths: Sequence[str], on_change: Callable[[str], OnChange] | None = None
    ) -> Workflow[list[Node | None]]:
        """Read many nodes, STEP at once."""
        found: list[Node | None] = []
        while len(found) < len(paths):
            try:
                found += yield from ask_all(paths[len(found) : len(found) + STEP], on_change)
            except Failure as failure:
                yield from self._wait_or_raise(failure.as_value())
            else:
                self.check_term()
                if len(found) < len(paths):
                    yield from self.yield_turn()
        return found

    def _wait_or_raise(self, failure: Failure) -> Workflow[None]:
        """Wait if the store may answer later; else raise the Failure again."""
        self.check_term()
        if failure.kind not in _TRANSIENT:
            raise failure
        yield from self.yield_turn(RETRY_MS)

    # -- writing -----------------------------------------------------------------------------------------------

    def with_epoch_check(self, ops: Sequence[Op]) -> list[Op]:
        """These operations as a multi that fails for every other controller epoch."""
        return [Op("check", CONTROLLER_EPOCH, version=self.term.epoch_version), *ops]

    def write_multi(self, lane: str, ops: Sequence[Op]) -> Workflow[Sequence[tuple[str, int]]]:
        """Submit one fenced multi. Returns the results of the operations, without that of the check.

        Raises ApiError NOT_CONTROLLER; or, while this broker is the controller, Failure CONFLICT, UNKNOWN or TIMEOUT,
        after which the caller has to read what the nodes contain.
        """
        while True:
            try:
                results = yield from submit_multi(lane, self.with_epoch_check(ops))
            except Failure as failure:
                # 1. Not done: repeat it. 2. The outcome is open, or a condition failed: while the epoch is this term's,
                # the caller reads the nodes; otherwise the term is over.
                self.check_term()
                if failure.kind is Kind.NOT_DONE:
                    yield from self.yield_turn(RETRY_MS)
                    continue
                if failure.kind in (Kind.CONFLICT, Kind.UNKNOWN, Kind.TIMEOUT):
                    yield from self.verify_epoch()
                raise
            self.check_term()
            return results[len(results) - len(ops) :]

    def try_write(self, lane: str, ops: Sequence[Op]) -> Workflow[None]:
        """Submit one fenced multi that may fail. Callers read afterwards what the nodes contain."""
        try:
            yield from self.write_multi(lane, ops)
        except Failure as failure:
            if failure.kind not in (*_TRANSIENT, Kind.CONFLICT):
                raise

    def delete_nodes(self, paths: Sequence[str]) -> Workflow[None]:
        """Delete nodes that were processed; nodes that are gone already are no error."""
        for start in range(0, len(paths), STEP):
            left = list(paths[start : start + STEP])
            while left:
                try:
                    yield from self.write_multi("controller", [Op("delete", path) for path in left])
                except Failure as failure:
                    if failure.kind not in (*_TRANSIENT, Kind.CONFLICT):
                        raise
                    nodes = yield from self.read_nodes(left)
                    left = [path for path, node in zip(left, nodes, strict=True) if node is not None]
                else:
                    break

    def verify_epoch(self) -> Workflow[None]:
        """Compare the epoch's node with this term. Raises ApiError NOT_CONTROLLER when it has changed."""
        node = yield from self.read_node(CONTROLLER_EPOCH)
        if node is None or node.version != self.term.epoch_version:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "another broker is the controller")

    # -- states of partitions ----------------------------------------------------------------------------------

    def commit_partitions(self, tps: Sequence[TopicPartition], decide: StateDecision) -> Workflow[list[TopicPartition]]:
        """Decide and write the next states of these partitions. Returns the partitions that changed.

        1. `decide` sees the state that the controller knows; the write requires that state's version.
        2. If a multi fails, the states are read again: some may have been written, the others are decided again.
        3. A partition is given up after MAX_TRIES. Partitions that are gone or have a broken node are skipped.
        """
        changed: list[TopicPartition] = []
        left = list(tps)
        tries: Counter[TopicPartition] = Counter()
        while left:
            # Several multis are in flight at once, so that the latency of the store counts once per volley.
            volley, left = left[: STEP * VOLLEY], left[STEP * VOLLEY :]
            decided = self._decide_changes(volley, decide)
            batches = [decided[start : start + STEP] for start in range(0, len(decided), STEP)]
            outcomes = (yield from submit_multis(self._build_multis(batches))) if batches else []
            self.check_term()
            for batch, outcome in zip(batches, outcomes, strict=True):
                if isinstance(outcome, Failure):
                    done = yield from self._read_after_failure(batch, outcome)
                    # Partitions that are decided again go first, with the states that were just read.
                    left = _partitions_to_retry(batch, done, tries) + left
                else:
                    done = batch
                    self._store_written(batch, [version for _, version in outcome])
                changed += [change.tp for change in done]
                self.counters.unclean_elections += sum(change.unclean for change in done)
            if left:
                yield from self.yield_turn()
        return changed

    def _decide_changes(self, tps: Sequence[TopicPartition], decide: StateDecision) -> list[_Change]:
        changes = []
        for tp in tps:
            before = self.context.find_partition(tp)
            elected = None if before is None or tp in self.context.broken else decide(tp, before)
            if elected is not None:
                after = elected.partition
                state = StateNode(after.leader, after.leader_epoch, after.isr, self.term.epoch)
                changes.append(_Change(tp, after, elected.unclean, encode_state(state)))
        return changes

    def _build_multis(self, batches: Sequence[Sequence[_Change]]) -> list[tuple[str, list[Op]]]:
        multis = []
        for index, batch in enumerate(batches):
            ops = [op for change in batch for op in self._state_ops(change)]
            multis.append((f"controller {index}", self.with_epoch_check(ops)))
        return multis

    def _state_ops(self, change: _Change) -> list[Op]:
        tp, version = change.tp, change.after.state_version
        path = state_path(tp.topic, tp.partition)
        # An existing state is replaced only in the version that the decision was based on.
        if version != NOT_STORED:
            return [Op("put", path, change.data, version)]
        parent = [] if tp in self._has_parent else [Op("create", partition_path(tp.topic, tp.partition))]
        return [*parent, Op("create", path, change.data)]

    @changes_state
    def _store_written(self, batch: Sequence[_Change], versions: Sequence[int]) -> None:
        """Store the written states in memory; the result of each partition's last operation has the new version."""
        position = len(versions)
        for change in reversed(batch):
            self.context.put_partition(change.tp, change.after._replace(state_version=versions[position - 1]))
            # Counted before the mark of the parent is removed: without the mark the same change would count as two
            # operations.
            position -= len(self._state_ops(change))
            self._has_parent.pop(change.tp, None)

    def _read_after_failure(self, batch: Sequence[_Change], failure: Failure) -> Workflow[list[_Change]]:
        """Read the states again after a multi failed. Returns the changes that were written in spite of the failure."""
        if failure.kind not in (*_TRANSIENT, Kind.CONFLICT):
            raise failure
        # A conflict is an answer of the store, so the states can be read at once. Only a store that does not answer
        # needs time.
        if failure.kind is not Kind.CONFLICT:
            yield from self.yield_turn(RETRY_MS)
        yield from self.verify_epoch()
        nodes = yield from self.refresh_states([change.tp for change in batch])
        # The content includes the epoch of this term: an equal node is a write of this controller and of no other.
        return [
            change for change, node in zip(batch, nodes, strict=True) if node is not None and node.data == change.data
        ]

    def refresh_states(self, tps: Sequence[TopicPartition]) -> Workflow[list[Node | None]]:
        """Read the states of partitions again and store them in memory. Returns their nodes."""
        nodes = yield from self.read_nodes([state_path(tp.topic, tp.partition) for tp in tps])
        # A missing state is created with its parent. If an operator deleted only the state, the parent still exists.
        missing = [tp for tp, node in zip(tps, nodes, strict=True) if node is None]
        parents = yield from self.read_nodes([partition_path(tp.topic, tp.partition) for tp in missing])
        for tp, parent in zip(missing, parents, strict=True):
            if parent is not None:
                self._has_parent[tp] = None
        for tp, node in zip(tps, nodes, strict=True):
            before = self.context.find_partition(tp)
            if before is not None:
                self.context.put_partition(tp, self.with_state(tp, before, node))
        return nodes

    def with_state(self, tp: TopicPartition, partition: PartitionImage, node: Node | None) -> PartitionImage:
        """The partition with the state of its node. A node that cannot be decoded is logged and recorded as broken."""
        self.context.broken.pop(tp, None)
        if node is None:
            return partition._replace(state_version=NOT_STORED)
        try:
            state = decode_state(state_path(tp.topic, tp.partition), node.data)
        except BrokenNode as broken:
            logger.warning("controller: not changing partition %s: %s; repair or delete the node", tp, broken)
            self.context.broken[tp] = None
            return partition._replace(state_version=node.version)
        # Compared with the epochs of registrations, this finds brokers that restarted before the term.
        if self.context.is_new:
            self.context.changed_at[tp] = node.mzxid
        return partition._replace(
            leader=state.leader, leader_epoch=state.leader_epoch, isr=state.isr, state_version=node.version
        )


def _partitions_to_retry(
    batch: Sequence[_Change], done: Sequence[_Change], tries: Counter[TopicPartition]
) -> list[TopicPartition]:
    """The partitions to decide again. Gives up, with a log line, those that another writer keeps changing."""
    again = []
    finished = {change.tp for change in done}
    for change in batch:
        if change.tp in finished:
            continue
        tries[change.tp] += 1
        if tries[change.tp] < MAX_TRIES:
            again.append(change.tp)
        else:
            logger.warning("controller: giving up the state of partition %s after %d tries", change.tp, MAX_TRIES)
    return again


def _do_nothing(_: object) -> None:
    """Discard a value."""
