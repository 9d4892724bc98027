"""Deletions of topics: every replica has to confirm before the topic's nodes are removed.

Zone: deterministic. A deletion is decided by a node under /admin/delete_topics and outlives controllers; replicas on
brokers that are down are deleted when those come back, and the topic's name is taken until then.
A move of replicas does not delay a deletion: all replicas are deleted, those being added as well as those removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from ottla.cluster.controller.channel import PartitionErrors
from ottla.cluster.controller.partition_state_store import PartitionStateStore
from ottla.cluster.controller.queue import WorkQueue
from ottla.cluster.store.layout import DELETE_TOPICS, partitions_path, topic_config_path, topic_path
from ottla.cluster.store.workflow import Workflow
from ottla.cluster.topics import MAX_NAME, deletion_mark, deletion_steps
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind
from ottla.types import TopicPartition

logger = logging.getLogger(__name__)

DeletionDone = Callable[["ApiError | None"], None]
_GONE = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Error codes in responses to a deletion which mean that the replica does not exist any more."""


class TopicDeletions:
    """Deletions of one controller."""

    def __init__(self, core: PartitionStateStore, queue: WorkQueue) -> None:
        self._core = core
        self._context = core.context
        self._queue = queue
        self._requests: dict[str, list[DeletionDone]] = {}

    # -- decided -------------------------------------------------------------------------------------------------

    def mark_topic(self, name: str) -> Workflow[None]:
        """Decide the deletion of a topic. Raises ApiError when the topic does not exist."""
        if name not in self._context.topics or name in self._context.deleting:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:MAX_NAME]!r}")
        try:
            yield from self._core.write_multi("controller", deletion_mark(name))
        except Failure as failure:
            if failure.kind is not Kind.CONFLICT:
                raise  # a conflict: the mark exists, so the deletion was already decided
        yield from self._begin_deletion(name)

    def read_marks(self, on_change: Callable[[], None]) -> Workflow[None]:
        """Read /admin/delete_topics: begin the deletions that are new, remove marks that cannot be obeyed."""
        names = yield from self._core.read_children(DELETE_TOPICS, on_change)
        enabled = self._core.config().delete_topic_enable
        # Marks of topics that do not exist would block a later topic of that name. A deletion that this controller has
        # begun continues even if delete.topic.enable has been switched off since.
        void = [name for name in names if not self._is_known(name) or not (enabled or name in self._context.deleting)]
        if void:
            logger.warning("controller: not deleting %s: no such topics, or delete.topic.enable is false", void)
            yield from self._core.delete_nodes([f"{DELETE_TOPICS}/{name}" for name in void])
        for name in names:
            if name not in void and name in self._context.topics and name not in self._context.deleting:
                yield from self._begin_deletion(name)

    def _is_known(self, name: str) -> bool:
        return name in self._context.topics or name in self._context.creating

    def _begin_deletion(self, name: str) -> Workflow[None]:
        """Hide the topic from clients, and send StopReplica with deletion to its replicas."""
        logger.info("controller: deleting topic %s", name)
        topic = self._context.topics[name]
        tps = [TopicPartition(name, number) for number in topic.partitions]
        self._context.begin_deletion(name)
        yield from self._core.each_chunk(tps, self._core.channels.send_metadata)
        yield from self._stop_replicas(name, None)

    def _stop_replicas(self, name: str, brokers: Sequence[int] | None) -> Workflow[None]:
        left: dict[int, list[TopicPartition]] = {}
        for tp, broker in self._context.deleting[name]:
            if broker in self._context.brokers and (brokers is None or broker in brokers):
                left.setdefault(broker, []).append(tp)
        for broker in sorted(left):
            stop = partial(self._core.channels.send_stops, broker, delete=True)
            yield from self._core.each_chunk(left[broker], stop)
        if not self._context.deleting.get(name, True):
            self._queue_removal(name)

    def resume_deletions(self, brokers: Sequence[int]) -> Workflow[None]:
        """Delete replicas on brokers that have come back."""
        for name in list(self._context.deleting):
            yield from self._stop_replicas(name, brokers)

    # -- confirmed -----------------------------------------------------------------------------------------------

    def on_stop_replica_response(self, broker: int, errors: PartitionErrors) -> None:
        """Handle a broker's response to StopReplica with deletion."""
        failed: dict[str, None] = {}
        for tp, code in errors.items():
            left = self._context.deleting.get(tp.topic)
            if left is None:
                continue
            # The replica is deleted, or its broker does not have it. Other errors are retried when the broker restarts.
            if code in _GONE:
                left.pop((tp, broker), None)
                if not left:
                    self._queue_removal(tp.topic)
            else:
                failed[tp.topic] = None
        for name in failed:
            logger.warning(
                "controller: broker %d could not delete its replicas of %s; retrying when it restarts",
                broker,
                name,
            )
            self._answer_requests(name, None)

    def on_brokers_gone(self, brokers: Sequence[int]) -> None:
        """Answer requests for deletions on brokers that are gone. The deletions end when the brokers come back."""
        for name, left in self._context.deleting.items():
            # The client gets its response now: the deletion is decided, and will end when the brokers return.
            if any(broker in brokers for _, broker in left):
                self._answer_when_sent(name)

    def _queue_removal(self, name: str) -> None:
        self._queue.submit_change(f"remove topic {name}", lambda: self._remove_nodes(name))

    def _remove_nodes(self, name: str) -> Workflow[None]:
        """Remove the topic's nodes, the mark last, so that the next controller resumes after a crash."""
        if name not in self._context.deleting:
            return
        while True:
            partitions = yield from self._core.read_children(partitions_path(name))
            paths = [topic_path(name), topic_config_path(name), partitions_path(name), f"{DELETE_TOPICS}/{name}"]
            paths += [f"{partitions_path(name)}/{partition}/state" for partition in partitions]
            nodes = yield from self._core.read_nodes(paths)
            # A crash may have left some of the nodes. Deleting an absent one would fail the whole multi.
            absent = {path for path, node in zip(paths, nodes, strict=True) if node is None}
            try:
                for step in deletion_steps(name, partitions, nodes[1] is not None):
                    ops = [op for op in step if op.path not in absent]
                    if ops:
                        yield from self._core.write_multi(f"topic {name}", ops)
                    yield from self._core.yield_turn()
            except Failure as failure:
                if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN, Kind.TIMEOUT):
                    raise
                yield from self._core.yield_turn(100)
            else:
                break
        self._context.remove_topic(name)
        self._answer_requests(name, None)

    # -- requests --------------------------------------------------------------------------------------------------

    def wait_for_deletion(self, name: str, done: DeletionDone) -> None:
        """Call `done` when the topic is gone, or, if a replica's broker is down, when all live brokers know."""
        if name not in self._context.deleting:
            done(None)
            return
        self._requests.setdefault(name, []).append(done)
        if any(broker not in self._context.brokers for _, broker in self._context.deleting[name]):
            self._answer_when_sent(name)

    def _answer_when_sent(self, name: str) -> None:
        if name in self._requests:
            self._core.channels.call_when_sent(list(self._context.brokers), lambda: self._answer_requests(name, None))

    def _answer_requests(self, name: str, outcome: ApiError | None) -> None:
        for done in self._requests.pop(name, ()):
            done(outcome)

    def answer_all(self, why: ApiError) -> None:
        """Answer all requests at the end of the term."""
        for name in list(self._requests):
            self._answer_requests(name, why)
