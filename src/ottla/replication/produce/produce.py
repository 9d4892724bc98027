"""Produce: the hot path from the request to the logs, and its response.

Zone: deterministic.

API 0. Versions 0-13. Versions 0-2 carry message sets of formats v0 and v1, which become batches of format v2 (KIP-98);
in later versions they are answered INVALID_RECORD, as in Kafka.

Behaviour
- acks 0: no response; an error closes the connection, so that the producer notices it (as in Kafka). acks 1: the
  response follows the append. acks all (-1): when the high watermark has passed the batch; a DelayedProduce waits.
- A duplicate of an idempotent producer gets the response of its original, and under acks=all not before that.
- A batch that begins a transaction in its partition is held while the transaction's coordinator is asked (KIP-890);
  from version 12 on that request also adds the partition to the transaction. The next request waits meanwhile.
- Batches of compacted topics are inspected: records without a key are refused (INVALID_RECORD), and so are batches that
  contradict their header. Large batches are held while a worker inspects or recompresses them (compression.type); the
  connection's next request waits meanwhile, so that nothing overtakes them.
- Not the leader (any more): NOT_LEADER_OR_FOLLOWER, from version 10 on with the leader and its address. A delayed
  response ends when leadership is lost or the ISR becomes too small.
- A small message set is converted within the turn; larger ones are held while a worker converts them. An empty message
  set gets no error and the offset -1, as from old brokers.

Version notes: 1 throttle time, 2 format v1 and the append time (KIP-32), 3 format v2, 4 KAFKA_STORAGE_ERROR (before:
NOT_LEADER_OR_FOLLOWER, on which clients also look for another leader), 5 log start offset, 8 texts of errors and of
single records (KIP-467), 9 flexible, 10 current leaders (KIP-951), 11 TRANSACTION_ABORTABLE, 12 partitions are added to
transactions (KIP-890), 13 topic ids (KIP-516)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.leaders import Leaders, NoLeaders, missing_partition_error
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import HostedTopic, PartitionRegistry
from ottla.replication.produce.batch_preprocessing import BatchItem, BatchPreprocessing, RefusedBatch, without_zstd
from ottla.replication.produce.delayed_produce import DelayedProduce, LateResponse
from ottla.replication.produce.large_produce import LargeProduce
from ottla.replication.produce.legacy_format_writes import LegacyFormatWrites
from ottla.replication.produce.message_sets import NO_MESSAGES, MessageSetConversion, converted_at_once, has_message_set
from ottla.replication.produce.produce_responses import (
    AnswersWithTexts,
    Refusals,
    Responses,
    Row,
    map_storage_errors,
    with_topic_ids,
)
from ottla.replication.produce.verification import Beginning, Verification, find_beginnings
from ottla.replication.produce.verifier import Verifier
from ottla.requests import Contain, Declaration, RunSteps, Steps, raise_defect, refuse_steps
from ottla.seams import Gate, Slot, World
from ottla.types import NO_EPOCH, ZERO_UUID
from ottla.wire import hot
from ottla.wire.apis import ApiKey
from ottla.wire.codec import encode
from ottla.wire.header import response_header
from ottla.wire.messages import ProduceResponse

DECLARATION: Final = Declaration(
    ApiKey.PRODUCE, 0, 13, resource="Topic", operation="Write", also=(("TransactionalId", "Write"),)
)
"""A request has a transactional id only if its records belong to a transaction."""
MAX_VERSION: Final = DECLARATION.max_version
_TOPIC_ID_VERSION: Final = 13
_BATCH_VERSION: Final = 3
"""From this version on records are batches of format v2."""
_STORAGE_VERSION: Final = 4
"""From this version on clients know KAFKA_STORAGE_ERROR."""
_ONE_VERSION: Final = 5
"""From this version on a response without errors has one layout."""
_ANSWERED: Final = (1, -1)
"""Values of acks that get a response."""
_ZSTD_VERSION: Final = 7
"""From this version on batches may be compressed with zstd."""
_Decoded = tuple[str | None, int, int, Sequence[BatchItem]]
"""(transactional id, acks, timeout in ms, items)."""
_MESSAGE_VERSION: Final = 8
"""From this version on a partition's error can carry a text."""
_correlation: Final = Struct(">i").pack

SliceDone = Callable[[Responses, Refusals], None]


class ProduceHandler:
    """Answers Produce requests."""

    def __init__(
        self,
        world: World,
        hosted: PartitionRegistry,
        purgatory: Purgatory,
        leaders: Leaders | None = None,
        verifier: Verifier | None = None,
        contain: Contain = raise_defect,
        run_steps: RunSteps = refuse_steps,
    ) -> None:
        """`leaders`: the cluster's view, for requests that reached the wrong broker. `verifier` asks transaction
        coordinators; without one, a batch that needs verification is refused.
        `contain` handles defects in responses of a later turn; `run_steps` runs requests of many partitions."""
        self._contain = contain
        self._run_steps = run_steps
        self._world = world
        self._verifier = verifier
        self._leaders: Leaders = leaders or NoLeaders()
        self._texts = AnswersWithTexts(hosted, self._leaders)
        self._reply = world.network.send_reply
        self._now = world.clock.now
        self._hosted = hosted
        self._purgatory = purgatory
        self._decode = [_decoder_for(version) for version in range(MAX_VERSION + 1)]
        self._encode = [hot.encode_produce(version) for version in range(MAX_VERSION + 1)]
        self._header = [response_header(0, version, 0)[4:] for version in range(MAX_VERSION + 1)]
        self._one = [hot.OneAnswer(max(version, _ONE_VERSION)) for version in range(MAX_VERSION + 1)]
        by_name, by_id = hosted.by_name, hosted.by_id
        self._topics: list[Mapping[Any, HostedTopic]] = [by_name] * _TOPIC_ID_VERSION + [by_id]

    def on_request(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        """Decode, append, respond. Raises MalformedMessage."""
        # 1. More partitions than one turn may handle.
        try:
            transactional_id, acks, timeout_ms, items = self._decode[version](frame, pos)
        except hot.ManyPartitions:
            return self._run_in_slices(slot, frame, version, correlation_id, pos)
        # 2. A transaction begins in some partition: its coordinator is asked first; that path covers 5 and 6 as well.
        if transactional_id is not None and self._verifier is not None:
            beginnings = self._find_beginnings(version, items)
            if beginnings:
                decoded = transactional_id, acks, timeout_ms, items
                return self._verify_and_run(slot, frame, version, correlation_id, pos, decoded, beginnings)
        # 3. An old client's message set.
        if version < _BATCH_VERSION and has_message_set(items):
            return self._convert_and_run(slot, frame, version, correlation_id, pos)
        # 4. Most requests: one partition, which is here and does not wait for a disk. As `_append_and_respond`, without
        # its lists.
        if len(items) == 1 and version >= _ONE_VERSION and acks in _ANSWERED:
            name, index, records = items[0]
            topic = self._topics[version].get(name)
            partition = None if topic is None else topic.direct.get(index)
            if topic is not None and partition is not None and records and not partition.syncs:
                try:
                    base_offset, append_time, required = partition.leader_role.append(records, acks, self._now())  # type: ignore[arg-type]  # true
                except ApiError as error:
                    row = (index, int(error.code), -1, -1, -1)
                    refusal = error.as_value()
                    self._finish_one(slot, version, correlation_id, acks, timeout_ms, topic, row, refusal, None)
                    return Gate.NEXT
                if acks < 0 and partition.high_watermark < required:
                    row = (index, 0, base_offset, append_time, partition.log.start_offset)
                    late = (partition, required)
                    self._finish_one(slot, version, correlation_id, acks, timeout_ms, topic, row, None, late)
                    return Gate.NEXT
                one = self._one[version]
                body = one.pack(index, 0, base_offset, append_time, partition.log.start_offset, *one.constants)
                head = topic.heads.get(version) or self._head_of(topic, version)
                self._reply(slot, (_correlation(correlation_id) + head + body,))
                return Gate.NEXT
        # 5. Batches that have to be inspected or recompressed; 6. all others.
        if self._hosted.preparing and self._wants_preparation(version, items):
            return self._prepare_and_run(slot, frame, version, correlation_id, pos)
        self._append_and_respond(slot, version, correlation_id, acks, timeout_ms, items)
        return Gate.NEXT

    def _head_of(self, topic: HostedTopic, version: int) -> bytes:
        head = self._header[version] + self._one[version].head_bytes(topic.name, topic.topic_id)
        topic.heads[version] = head
        return head

    def _finish_one(
        self,
        slot: Slot,
        version: int,
        correlation_id: int,
        acks: int,
        timeout_ms: int,
        topic: HostedTopic,
        row: Row,
        error: ApiError | None,
        late: tuple[Partition, int] | None,
    ) -> None:
        """Finish a request of one partition that was refused, or that waits for the high watermark."""
        rows = [row]
        refused = {} if error is None else {(1, 0): error}
        waiting = {} if late is None else {late[0]: (late[1], rows, 0)}
        answers: Responses = [(topic.name, topic.topic_id, rows)]
        self._finish_request(slot, version, correlation_id, acks, timeout_ms, answers, refused, waiting)

    def _append_and_respond(
        self, slot: Slot, version: int, correlation_id: int, acks: int, timeout_ms: int, items: Sequence[BatchItem]
    ) -> None:
        """Append the items of a request of several partitions, and respond or wait."""
        answers, refused, late = self.append_items(version, acks, items)
        if refused or late or not acks:
            self._finish_request(slot, version, correlation_id, acks, timeout_ms, answers, refused or {}, late or {})
            return
        head = _correlation(correlation_id)
        self._reply(slot, (head + self._header[version] + self._encode[version](answers, 0),))

    def _run_held(
        self, slot: Slot, version: int, correlation_id: int, acks: int, timeout_ms: int, items: Sequence[BatchItem]
    ) -> None:
        """Run a request that was held. A defect fails this request only, not the turn. Raises HalfChanged."""
        self._world.network.open_gate(slot)
        try:
            self._append_and_respond(slot, version, correlation_id, acks, timeout_ms, items)
        except Exception as error:  # noqa: BLE001  # it has changed nothing, or whole changes only
            self._contain(error, slot, ApiKey.PRODUCE, version, correlation_id, None)

    def append_items(
        self, version: int, acks: int, items: Sequence[BatchItem]
    ) -> tuple[Responses, Refusals | None, LateResponse | None]:
        """Append the items. Returns the rows, the refusals and the rows that wait. Hot: written inline."""
        topics = self._topics[version]
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
            if (acks < 0 and partition.high_watermark < required) or (partition.syncs and acks):
                late = late or {}
                late[partition] = (required, rows, len(rows))
            rows.append((index, 0, base_offset, append_time, partition.log.start_offset))
        return answers, refused, late

    def _finish_request(
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
        self._count_failures(version, answers, refused)
        if acks == 0:
            self.end_unanswered(slot, next(iter(refused.values()), None))
            return

        def send_response() -> None:
            try:
                self._send_response(slot, version, correlation_id, answers, refused)
            except Exception as error:  # noqa: BLE001  # an answer changes nothing
                self._contain(error, slot, ApiKey.PRODUCE, version, correlation_id, None)

        if late:
            waiting = DelayedProduce(late, acks, answers, refused, send_response)
            self._purgatory.try_complete_else_watch(waiting, list(late), timeout_ms)
        else:
            send_response()

    def end_unanswered(self, slot: Slot, error: ApiError | None) -> None:
        """End a request with acks=0: the connection handles the next one, or is closed because of the error."""
        self._reply(slot, ())
        if error is not None:
            self._world.network.close_connection(slot.peer, f"Produce with acks=0 failed with {error}")

    def _send_response(
        self, slot: Slot, version: int, correlation_id: int, answers: Responses, refused: Refusals
    ) -> None:
        if version < _STORAGE_VERSION and refused:
            map_storage_errors(answers)
        head = _correlation(correlation_id) + self._header[version]
        if refused and version >= _MESSAGE_VERSION:
            response = self._texts.build_response(answers, refused, version, slot.peer.listener)
            self._reply(slot, [head, *encode(response, version)])
        else:
            self._reply(slot, [head + self._encode[version](with_topic_ids(answers, version), 0)])

    def _count_failures(self, version: int, answers: Responses, refused: Refusals) -> None:
        for at, _ in refused:
            name, topic_id, _ = answers[at - 1]
            topic = self._topics[version].get(topic_id if version >= _TOPIC_ID_VERSION else name)
            if topic is not None:
                topic.failed_produces += 1

    def _append_error(
        self, topic: HostedTopic | None, name: str | bytes, index: int, acks: int, records: object
    ) -> ApiError:
        """The error of an item that cannot be appended at all; the first case that applies, as in Kafka."""
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

    # -- many partitions -----------------------------------------------------------------------------------------------

    def _run_in_slices(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        held = self._world.network.hold_frame(slot, frame)

        def make(resume: Callable[[], None]) -> Steps:
            return LargeProduce(self, slot, version, held, pos, resume).request_steps()

        self._run_steps(slot, ApiKey.PRODUCE, version, correlation_id, make)
        return Gate.WAIT

    def run_slice(
        self,
        slot: Slot,
        version: int,
        transactional_id: str | None,
        acks: int,
        timeout_ms: int,
        items: Sequence[BatchItem],
        done: SliceDone,
    ) -> None:
        """Run some partitions of a large request; `done` receives their rows, perhaps in a later turn.

        The steps are those of a whole request, innermost first: run, verify, prepare, convert."""
        topics = self._topics[version]

        def run(items: Sequence[BatchItem]) -> None:
            answers, refused, late = self.append_items(version, acks, items)
            refusals = refused or {}
            self._count_failures(version, answers, refusals)
            if not late or not acks:
                done(answers, refusals)
                return
            waiting = DelayedProduce(late, acks, answers, refusals, lambda: done(answers, refusals))
            self._purgatory.try_complete_else_watch(waiting, list(late), timeout_ms)

        def verify(items: Sequence[BatchItem]) -> None:
            beginnings = self._find_beginnings(version, items)
            if transactional_id is None or self._verifier is None or not beginnings:
                run(items)
                return
            verification = Verification(self._world.clock, version, items, run)
            verification.start_verification(self._verifier, transactional_id, beginnings)

        def prepare(items: Sequence[BatchItem]) -> None:
            if self._hosted.preparing and self._wants_preparation(version, items):
                self._prepare_items(version, items, verify, slot.peer)
            else:
                verify(items)

        if _BATCH_VERSION <= version < _ZSTD_VERSION:
            items = without_zstd(items)
        if version < _BATCH_VERSION and has_message_set(items):
            MessageSetConversion(self._world, topics, items, prepare, slot.peer).convert_from(0)
        else:
            prepare(items)

    def response_of(self, answers: Responses, texts: Refusals, version: int, listener: str) -> ProduceResponse:
        """The response for some partitions of a large request."""
        if version < _STORAGE_VERSION:
            map_storage_errors(answers)
        return self._texts.build_response(answers, texts, version, listener)

    def now_ms(self) -> int:
        """The monotonic time in ms, for deadlines."""
        return self._now().mono_ns // 1_000_000

    # -- preparing batches ---------------------------------------------------------------------------------------------

    def _wants_preparation(self, version: int, items: Sequence[BatchItem]) -> bool:
        topics = self._topics[version]
        return any((topic := topics.get(name)) is not None and topic.prepared for name, _, _ in items)

    def _prepare_and_run(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        """Hold the request, inspect or recompress the batches that need it, then run it."""
        _, acks, timeout_ms, items = self._decode[version](self._world.network.hold_frame(slot, frame), pos)

        def run(items: Sequence[BatchItem]) -> None:
            self._run_held(slot, version, correlation_id, acks, timeout_ms, items)

        self._prepare_items(version, items, run, slot.peer)
        return Gate.WAIT

    def _prepare_items(
        self, version: int, items: Sequence[BatchItem], run: Callable[[Sequence[BatchItem]], None], owner: object
    ) -> None:
        topics = self._topics[version]

        def lower(items: Sequence[BatchItem]) -> None:
            LegacyFormatWrites(self._world, topics, items, run, owner).convert_from(0)

        BatchPreprocessing(self._world, topics, items, lower, owner).prepare_from(0)

    # -- message sets ------------------------------------------------------------------------------------------------

    def _convert_and_run(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        """Convert message sets to batches and run the request: within this turn if they are small, else later."""
        _, acks, timeout_ms, items = self._decode[version](frame, pos)
        topics, now_ms = self._topics[version], self._now().wall_ms
        wants_preparation = self._hosted.preparing and self._wants_preparation(version, items)
        ready = None if wants_preparation else converted_at_once(topics, items, now_ms)
        if ready is not None:
            self._append_and_respond(slot, version, correlation_id, acks, timeout_ms, ready)
            return Gate.NEXT
        _, _, _, held = self._decode[version](self._world.network.hold_frame(slot, frame), pos)

        def run(items: Sequence[BatchItem]) -> None:
            self._run_held(slot, version, correlation_id, acks, timeout_ms, items)

        def prepare(items: Sequence[BatchItem]) -> None:
            self._prepare_items(version, items, run, slot.peer)

        ready = converted_at_once(topics, held, now_ms) if wants_preparation else None
        if ready is not None:
            prepare(ready)
        else:
            MessageSetConversion(
                self._world, topics, held, prepare if wants_preparation else run, slot.peer
            ).convert_from(0)
        return Gate.WAIT

    # -- the first batches of a transaction ----------------------------------------------------------------------------

    def _find_beginnings(self, version: int, items: Sequence[BatchItem]) -> list[Beginning]:
        return list(find_beginnings(version, self._topics[version], items))

    def _verify_and_run(
        self,
        slot: Slot,
        frame: memoryview,
        version: int,
        correlation_id: int,
        pos: int,
        decoded: _Decoded,
        beginnings: list[Beginning],
    ) -> Gate:
        """Prepare the batches, ask the transaction's coordinator, and run the request: within this turn if the
        coordinator answers at once, else the request is held."""
        transactional_id, acks, timeout_ms, items = decoded
        held = False

        def run(items: Sequence[BatchItem]) -> None:
            run = self._run_held if held else self._append_and_respond
            run(slot, version, correlation_id, acks, timeout_ms, items)

        def verify(beginnings: list[Beginning], items: Sequence[BatchItem]) -> Verification | None:
            """The verification that waits for an answer; None: the request has run."""
            assert self._verifier is not None, "on_request checks it"
            assert transactional_id is not None, "only transactional requests are verified"
            verification = Verification(self._world.clock, version, items, run)
            is_asked = verification.start_verification(self._verifier, transactional_id, beginnings)
            return None if is_asked else verification

        def prepared(items: Sequence[BatchItem]) -> None:
            beginnings = self._find_beginnings(version, items)
            if beginnings:  # else another connection has opened the transaction meanwhile
                verify(beginnings, items)
            else:
                run(items)

        if self._hosted.preparing and self._wants_preparation(version, items):
            held = True
            items = self._decode[version](self._world.network.hold_frame(slot, frame), pos)[3]
            self._prepare_items(version, items, prepared, slot.peer)
            return Gate.WAIT
        waiting = verify(beginnings, items)
        if waiting is None:
            return Gate.NEXT
        held = True
        waiting.replace_items(self._decode[version](self._world.network.hold_frame(slot, frame), pos)[3])
        return Gate.WAIT


def _decoder_for(version: int) -> Callable[[memoryview, int], _Decoded]:
    decode = hot.decode_produce(version)
    if not _BATCH_VERSION <= version < _ZSTD_VERSION:
        return decode

    def decode_older(frame: memoryview, pos: int) -> _Decoded:
        transactional_id, acks, timeout_ms, items = decode(frame, pos)
        return transactional_id, acks, timeout_ms, without_zstd(items)

    return decode_older
