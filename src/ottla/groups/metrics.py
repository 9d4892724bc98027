"""The metrics of groups: states, members, rebalances, committed offsets and lag.

Zone: deterministic. Counts have Kafka's names; offsets and lag have the names of the usual lag exporter, so that none
is needed. Values are read from the shards at each scrape. Lag is reported where this broker has a replica of the
partition; a follower's end may lag a little behind the leader's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from ottla.groups.group import Group, GroupState
from ottla.groups.groups import Groups
from ottla.metrics import Histogram, Labels, Registry

_PREFIX: Final = "kafka_coordinator_group_groupmetadatamanager_"
Rows = Iterator[tuple[Labels, float]]


class GroupMetrics:
    """Registers the metrics of one broker's groups."""

    def __init__(self, registry: Registry, groups: Groups, end_of: Callable[[str, int], int | None]) -> None:
        """`end_of` returns the high watermark of a partition that has a replica here, else None."""
        self._groups = groups
        self._end_of = end_of
        gauge = registry.add_gauge
        gauge(f"{_PREFIX}numgroups", "Groups coordinated here.", lambda: float(sum(1 for _ in self._all_groups())))
        gauge(f"{_PREFIX}numoffsets", "Committed offsets here.", self._offset_count)
        for state in GroupState:
            name = f"{_PREFIX}numgroups{state.value.lower()}"
            gauge(name, f"Groups in the state {state.value}.", partial(self._in_state, state))
        registry.add_counter(f"{_PREFIX}rebalances_total", "Rebalances begun.", self._rebalance_count)
        registry.add_histogram(f"{_PREFIX}rebalance_ms", "How long rebalances took.", self._rebalance_times)
        gauge("kafka_consumergroup_members", "Members of a group.", self._member_counts)
        gauge("kafka_consumergroup_current_offset", "Committed offset.", self._offset_rows)
        gauge("kafka_consumergroup_current_offset_sum", "Committed offsets of a topic, summed.", self._position_sums)
        gauge("kafka_consumergroup_lag", "Records between the committed offset and the end.", self._lag_rows)
        gauge("kafka_consumergroup_lag_sum", "The lag of a topic, summed.", self._lag_sums)

    def _all_groups(self) -> Iterator[Group]:
        for shard in self._groups.shards():
            yield from shard.groups.values()

    def _offset_count(self) -> float:
        return float(sum(shard.offsets.count for shard in self._groups.shards()))

    def _in_state(self, state: GroupState) -> float:
        return float(sum(group.state is state for group in self._all_groups()))

    def _rebalance_count(self) -> float:
        return float(sum(shard.rebalances for shard in self._groups.shards()))

    def _rebalance_times(self) -> Iterator[tuple[Labels, Histogram]]:
        for index, shard in self._groups.coordinator.active_shards():
            if shard.rebalance_ms.count:
                yield {"partition": str(index)}, shard.rebalance_ms

    def _member_counts(self) -> Rows:
        for group in self._all_groups():
            yield {"consumergroup": group.group_id}, len(group.members)

    def _offset_rows(self) -> Rows:
        for group_id, topic, partition, offset in self._held_offsets():
            yield {"consumergroup": group_id, "topic": topic, "partition": str(partition)}, offset

    def _position_sums(self) -> Rows:
        return _sum_by_topic((group_id, topic, offset) for group_id, topic, _, offset in self._held_offsets())

    def _lag_rows(self) -> Rows:
        for group_id, topic, partition, lag in self._offset_lags():
            yield {"consumergroup": group_id, "topic": topic, "partition": str(partition)}, lag

    def _lag_sums(self) -> Rows:
        return _sum_by_topic((group_id, topic, lag) for group_id, topic, _, lag in self._offset_lags())

    def _held_offsets(self) -> Iterator[tuple[str, str, int, int]]:
        for shard in self._groups.shards():
            for group_id in shard.groups:
                for (topic, partition), position in shard.offsets.of_group(group_id):
                    yield group_id, topic, partition, position.offset

    def _offset_lags(self) -> Iterator[tuple[str, str, int, int]]:
        for group_id, topic, partition, offset in self._held_offsets():
            end = self._end_of(topic, partition)
            if end is not None:
                yield group_id, topic, partition, max(0, end - offset)


def _sum_by_topic(rows: Iterator[tuple[str, str, int]]) -> Rows:
    sums: dict[tuple[str, str], int] = {}
    for group_id, topic, number in rows:
        sums[group_id, topic] = sums.get((group_id, topic), 0) + number
    for (group_id, topic), total in sums.items():
        yield {"consumergroup": group_id, "topic": topic}, total
