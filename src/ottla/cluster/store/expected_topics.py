"""Topics that existed when this broker joined, and that no UpdateMetadata has contained yet.

Zone: deterministic. The controller sends a new broker the live brokers first and the topics later. If it dies between
the two, seconds pass until the next controller sends both. Until then the broker must not tell clients that such a
topic does not exist: librdkafka discards the partitions of an unknown topic together with the numbers of its idempotent
producer, and sends the batches in flight again with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ottla.cluster.store.layout import DELETE_TOPICS, BrokenNode, decode_topic, topic_path
from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.store.workflow import Workflow, read_nodes, run_workflow
from ottla.errors import ApiError
from ottla.seams import Failure


class ExpectedTopics:
    """The names, in the store's order."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def expect_topics(self, names: Iterable[str]) -> None:
        """Note the topics that exist at the join."""
        self._names = dict.fromkeys(names)

    def on_topics(self, names: Iterable[str]) -> None:
        """Topics have arrived, or were deleted: they are not expected any more."""
        if self._names:
            for name in names:
                self._names.pop(name, None)

    def recheck_first(self, store: WatchedStore) -> None:
        """Read the node of the first topic again: a topic that is deleted since the join never arrives.

        Nor does one whose node cannot be decoded: the controller leaves it out.
        """
        name = next(iter(self._names), None)
        if name is not None:
            run_workflow(store, _will_arrive(name), self._on_rechecked(name))

    def _on_rechecked(self, name: str) -> Callable[[bool | Failure | ApiError], None]:
        def on_outcome(outcome: bool | Failure | ApiError) -> None:
            if outcome is False:
                self._names.pop(name, None)

        return on_outcome


def _will_arrive(name: str) -> Workflow[bool]:
    node, deletion = yield from read_nodes([topic_path(name), f"{DELETE_TOPICS}/{name}"])
    if node is None or deletion is not None:
        return False
    try:
        decode_topic(topic_path(name), node.data)
    except BrokenNode:
        return False
    return True
