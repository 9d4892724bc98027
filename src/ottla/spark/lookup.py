"""The requests of the source before it reads: partitions, first and last offsets, offsets by timestamp.

Zone: real. Turns positions into offsets; `offsets` decides which of them a batch reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ottla.client.admin.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError
from ottla.client.metadata import TopicView
from ottla.errors import ErrorCode
from ottla.spark.errors import BadOption
from ottla.spark.group_offsets import GroupOffsets
from ottla.spark.option_values import EARLIEST, LATEST, Offsets
from ottla.spark.options import Position, SourceOptions
from ottla.types import ZERO_UUID, TopicPartition

T = TypeVar("T")
_BY_TIME = {EARLIEST: -2, LATEST: -1}


class Lookup:
    """A client of the cluster; a failed request is repeated `fetchOffset.numRetries` times."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = Cluster(options.client)
        self._admin = Admin(self._cluster)
        self.ids: dict[str, str] = {}
        """Topic ids in hex, as `list_partitions` last read them; topics without an id are left out."""
        self.group = None if options.commit_group is None else GroupOffsets(self._cluster, options.commit_group)

    def __enter__(self) -> Lookup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_connections()

    def close_connections(self) -> None:
        """Close the connections. Idempotent."""
        self._cluster.close()

    def list_partitions(self, *, all_there: bool = True) -> list[TopicPartition]:
        """The present partitions of the topics that the options name, in order.

        Raises RefusedError for a topic that does not exist, BadOption for an assigned partition that does not; without
        `all_there` these are left out.
        """
        topics = self._options.topics
        # Three ways to name topics: a pattern of the topics that are there now, a list of names, or partitions.
        if topics.pattern is not None:
            found = self._retry_call(self._admin.list_topics)
            matching = [view for view in found if topics.pattern.fullmatch(view.name)]
            return self._remember_topics(matching)
        names = topics.subscribe or tuple(dict.fromkeys(tp.topic for tp in topics.assign))
        try:
            known = self._remember_topics(self._retry_call(lambda: self._describe_topics(names)))
        # Metadata is retried as a whole, so one topic that is gone would hide the others: they are asked for once more,
        # and each missing one is left out.
        except RefusedError as error:
            if all_there or error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            known = self._remember_topics(self._describe_topics(names, all_there=False))
        missing = [tp for tp in topics.assign if tp not in known]
        if missing and all_there:
            raise BadOption("assign", f"names {missing[0]}, which does not exist")
        return [tp for tp in topics.assign if tp in known] if topics.assign else known

    def _remember_topics(self, topics: Iterable[TopicView]) -> list[TopicPartition]:
        views = list(topics)
        self.ids = {view.name: view.topic_id.hex() for view in views if view.topic_id != ZERO_UUID}
        return sorted(TopicPartition(view.name, number) for view in views for number in view.partitions)

    def _describe_topics(self, names: Iterable[str], *, all_there: bool = True) -> list[TopicView]:
        found = self._admin.describe_topics(list(names))
        for answer in found.values():
            unknown = isinstance(answer, RefusedError) and answer.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if isinstance(answer, ClientError) and (all_there or not unknown):
                raise answer
        return [answer for answer in found.values() if isinstance(answer, TopicView)]

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset of each partition's log."""
        return self._offsets_for_times(dict.fromkeys(partitions, EARLIEST))

    def latest_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The offset after the last readable record: with read_committed, the default, the last committed one."""
        return self._offsets_for_times(dict.fromkeys(partitions, LATEST))

    def due_offsets(self, latest: Mapping[TopicPartition, int], now_ms: int) -> Offsets:
        """The end of what may be read now: `latest`, or in topics with a delay the first record that is not
        due."""
        delays, given_ms = self._options.delays_ms, self._options.delays_at_ms
        now_ms = now_ms if given_ms is None else given_ms
        before = {tp: max(0, now_ms - delays[tp.topic]) for tp in latest if tp.topic in delays}
        found = self._offsets_for_times(before)
        return {tp: min(end, found[tp]) if found.get(tp, -1) >= 0 else end for tp, end in latest.items()}

    def resolve_position(self, position: Position, partitions: Iterable[TopicPartition], side: str) -> Offsets:
        """A position as an offset for every partition; `side` is "starting" or "ending", for messages.

        Raises BadOption when offsets or timestamps are not given for exactly these partitions, or when no record is as
        late as a timestamp.
        """
        wanted = list(partitions)
        if position.offsets is not None:
            _check_same_partitions(f"{side}Offsets", position.offsets, wanted)
            # Spark's -2 and -1 mean the first and the last offset; only these have to be asked for.
            special = {tp: number for tp, number in position.offsets.items() if number < 0}
            return {**position.offsets, **self._offsets_for_times(special)}
        if position.timestamps is not None:
            _check_same_partitions(f"{side}OffsetsByTimestamp", position.timestamps, wanted)
            return self._by_time(position.timestamps, side, position.or_latest)
        if position.group is not None:
            return self._from_group(position.group, wanted)
        if position.timestamp is not None:
            return self._by_time(dict.fromkeys(wanted, position.timestamp), side, position.or_latest)
        assert position.everywhere is not None
        return self._offsets_for_times(dict.fromkeys(wanted, position.everywhere))

    def _from_group(self, name: str, wanted: list[TopicPartition]) -> Offsets:
        # Partitions without a committed offset begin where a new group of Spark's would: at their first offset.
        group = GroupOffsets(self._cluster, name)
        found = self._retry_call(lambda: group.read_committed_offsets(wanted))
        return {tp: found[tp].offset if tp in found else begin for tp, begin in self.earliest_offsets(wanted).items()}

    def _by_time(self, times: Mapping[TopicPartition, int], side: str, or_latest: bool) -> Offsets:
        found = self._offsets_for_times(times)
        without = sorted(tp for tp, offset in found.items() if offset < 0)
        if without and not or_latest:
            tp = without[0]
            raise BadOption(
                f"{side}Timestamp",
                f"matches no offset: {tp} has no record at or after {times[tp]}; set "
                "startingOffsetsByTimestampStrategy=latest to start such partitions at their end",
            )
        return {**found, **self.latest_offsets(without)}

    def _offsets_for_times(self, times: Mapping[TopicPartition, int]) -> Offsets:
        return self._retry_call(lambda: self._list_offsets(times)) if times else {}

    def _list_offsets(self, times: Mapping[TopicPartition, int]) -> Offsets:
        found: Offsets = {}
        for tp, answer in self._admin.list_offsets(times).items():
            if isinstance(answer, ClientError):
                raise answer
            found[tp] = answer.offset
        return found

    def _retry_call(self, ask: Callable[[], T]) -> T:
        for _ in range(self._options.fetch_retries):
            try:
                return ask()
            except ClientError as error:
                # A topic that was just created is not known to every broker yet.
                unknown = isinstance(error, RefusedError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not error.retriable and not unknown:
                    raise
                time.sleep(self._options.fetch_retry_interval_ms / 1000)
        return ask()


def _check_same_partitions(name: str, named: Mapping[TopicPartition, int], there: Iterable[TopicPartition]) -> None:
    missing, unknown = sorted(set(there) - set(named)), sorted(set(named) - set(there))
    if missing:
        raise BadOption(name, f"must name every partition that is read: {missing[0]} is missing")
    if unknown:
        raise BadOption(name, f"names {unknown[0]}, which is not read")
