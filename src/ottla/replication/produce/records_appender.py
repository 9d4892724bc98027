"""Appends the items of Produce requests to the logs, and responds: the end of the hot path and of the slow one.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.leaders import Leaders, missing_partition_error
from ottla.replication.partition_registry import HostedTopic, PartitionRegistry
from ottla.replication.produce.delayed_produce import DelayedProduce, LateResponse
from ottla.replication.produce.produce_items import NO_MESSAGES, BatchItem, DeniedBatch, RefusedBatch
from ottla.replication.produce.produce_responses import (
    TOPIC_ID_VERSION,
    AnswersWithTexts,
    Refusals,
    Responses,
    Row,
    map_storage_errors,
    with_topic_ids,
)
from ottla.replication.produce.script import Begin
from ottla.requests import Contain
from ottla.seams import Slot, World
from ottla.types import NO_EPOCH, ZERO_UUID
from ottla.wire import hot
from ottla.wire.apis import ApiKey
from ottla.wire.codec import encode
from ottla.wire.header import response_header
from ottla.wire.messages import ProduceResponse

_STORAGE_VERSION: Final = 4
"""From this version on clients know KAFKA_STORAGE_ERROR."""
_MESSAGE_VERSION: Final = 8
"""From this version on a partition's error can carry a text."""
_correlation: Final = Struct(">i").pack

Appended = tuple[Responses, "Refusals | None", "LateResponse | None"]
"""(rows, refusals, rows that wait)."""


class RecordsAppender:
    """Appends items, and responds to their requests."""

    def __init__(
        self,
        world: World,
        hosted: PartitionRegistry,
        purgatory: Purgatory,
        leaders: Leaders,
        max_version: int,
        contain: Contain,
    ) -> None:
        """`contain` handles defects in responses of a later turn."""
        self._contain = contain
        self._network = world.network
        self._now = world.clock.now
        self._leaders = leaders
        self._texts = AnswersWithTexts(hosted, leaders)
        self._purgatory = purgatory
        self._encode = [hot.encode_produce(version) for version in range(max_version + 1)]
        self.headers = [response_header(0, version, 0)[4:] for version in range(max_version + 1)]
        """By version, the header of a response after its correlation id."""
        by_name, by_id = hosted.by_name, hosted.by_id
        self.topics: list[Mapping[Any, HostedTopic]] = [by_name] * TOPIC_ID_VERSION + [by_id]
        """By version, the topics that are here: by name, or by id."""

    def respond_or_wait(
        self, slot: Slot, version: int, correlation_id: int, acks: int, timeout_ms: int, appended: Appended
    ) -> None:
        """Respond to a request whose items were appended, or wait until they are committed."""
        answers, refused, late = appended
        if refused or late or not acks:
            self.finish_request(slot, version, correlation_id, acks, timeout_ms, answers, refused or {}, late or {})
            return
        head = _correlation(correlation_id)
        self._network.send_reply(slot, (head + self.headers[version] + self._encode[version](answers, 0),))

    def append_items(self, version: int, acks: int, items: Sequence[BatchItem]) -> Appended:
        """Append the items. Returns the rows, the refusals and the rows that wait. Hot: written inline."""
        topics = self.topics[version]
        now = self._now()
        answers: Responses = []
        refused: Refusals | None = None
        late: LateResponse | None = None
        last: object = None
        acks_known = -1 <= acks <= 1
        for name, index, records in items:
            if name != last:
                last = name
                topic = topics.get(name)
                rows: list[Row] = []
                answers.append((name, ZERO_UUID, rows) if topic is None else (topic.name, topic.topic_id, rows))
            try:
                # An unknown partition, no batch, or wrong acks: refused, but for an empty message set.
                partition = None if topic is None else topic.writable.get(index)
                if partition is None or not records or not acks_known:
                    if records is NO_MESSAGES and partition is not None and acks_known:
                        partition.check_leader(NO_EPOCH)
                        rows.append((index, 0, -1, -1, partition.log.start_offset))
                        continue
                    raise self._append_error(topic, name, index, acks, records)
                base_offset, append_time, required = partition.leader_role.append(records, acks, now)  # type: ignore[arg-type]  # true: no Refused
            except ApiError as error:
                refused = refused or {}
                refused[len(answers), len(rows)] = error.as_value()
                rows.append((index, error.code, -1, -1, -1))
                continue
            # With flush.messages acks=1 waits as well: for this broker's disk.
            if (acks < 0 and partition.high_watermark < required) or (partition.syncs and acks):
                late = late or {}
                late[partition] = (required, rows, len(rows))
            rows.append((index, 0, base_offset, append_time, partition.log.start_offset))
        return answers, refused, late

    def finish_request(
        self,
        slot: Slot,
        version: int,
        correlation_id: int,
        acks: int,
        timeout_ms: int,
        answers: Responses,
        refused: Refusals,
        late: LateResponse,
    ) -> None:
        """Finish a request with errors, with rows that wait, or without a response (acks=0)."""
        self.count_failures(version, answers, refused)
        if acks == 0:
            self.end_unanswered(slot, next(iter(refused.values()), None))
            return

        def send_response() -> None:
            try:
                self._send_response(slot, version, correlation_id, answers, refused)
            except Exception as error:  # noqa: BLE001  # an answer changes nothing
                self._contain(error, slot, ApiKey.PRODUCE, version, correlation_id, None)

        # The deadline counts from here: conversions and verifications before the append are not part of the time-out.
        if late:
            waiting = DelayedProduce(late, acks, answers, refused, send_response)
            self._purgatory.try_complete_else_watch(waiting, list(late), timeout_ms)
        else:
            send_response()

    def wait_for_commit(
        self, late: LateResponse, acks: int, answers: Responses, refused: Refusals, timeout_ms: int
    ) -> Begin:
        """For a script: waits until every row is settled. Rows that are refused meanwhile are added to `refused`."""

        def begin(done: Callable[[None], None]) -> None:
            waiting = DelayedProduce(late, acks, answers, refused, lambda: done(None))
            self._purgatory.try_complete_else_watch(waiting, list(late), timeout_ms)

        return begin

    def end_unanswered(self, slot: Slot, error: ApiError | None) -> None:
        """End a request with acks=0: the connection handles the next one, or is closed because of the error."""
        self._network.send_reply(slot, ())
        if error is not None:
            self._network.close_connection(slot.peer, f"Produce with acks=0 failed with {error}")

    def _send_response(
        self, slot: Slot, version: int, correlation_id: int, answers: Responses, refused: Refusals
    ) -> None:
        if version < _STORAGE_VERSION and refused:
            map_storage_errors(answers)
        head = _correlation(correlation_id) + self.headers[version]
        if refused and version >= _MESSAGE_VERSION:
            response = self._texts.build_response(answers, refused, version, slot.peer.listener)
            self._network.send_reply(slot, [head, *encode(response, version)])
        else:
            self._network.send_reply(slot, [head + self._encode[version](with_topic_ids(answers, version), 0)])

    def response_of(self, answers: Responses, texts: Refusals, version: int, listener: str) -> ProduceResponse:
        """The response for some partitions of a large request."""
        if version < _STORAGE_VERSION:
            map_storage_errors(answers)
        return self._texts.build_response(answers, texts, version, listener)

    def count_failures(self, version: int, answers: Responses, refused: Refusals) -> None:
        """Count the refused rows at their topics."""
        for at, _ in refused:
            name, topic_id, _ = answers[at - 1]
            topic = self.topics[version].get(topic_id if version >= TOPIC_ID_VERSION else name)
            if topic is not None:
                topic.failed_produces += 1

    def _append_error(
        self, topic: HostedTopic | None, name: str | bytes, index: int, acks: int, records: object
    ) -> ApiError:
        """The error of an item that cannot be appended at all; the first case that applies, as in Kafka."""
        if isinstance(records, DeniedBatch):
            return records.error
        if not -1 <= acks <= 1:
            return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {acks}")
        if topic is not None and topic.internal:
            text = f"{topic.name} is an internal topic; only the broker writes to it"
            return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        if topic is None or index not in topic.writable:
            return missing_partition_error(self._leaders, name, index)
        if isinstance(records, RefusedBatch):
            return records.error
        return ApiError(ErrorCode.INVALID_RECORD, "a Produce request must carry exactly one record batch")
