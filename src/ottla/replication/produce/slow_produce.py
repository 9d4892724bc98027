"""The slow path of Produce: one script, from the request to its response, for what the hot path cannot append at once.

Zone: deterministic. Message sets of old clients, batches that have to be inspected, recompressed or down-converted, the
first batch of a transaction, and each slice of a request of many partitions take this path. A request that gets all its
results within its turn, is answered within its turn.

Every step works on `items`, the partitions and records of the request: it replaces records, or lets an error take their
place (`RefusedBatch`), which costs that partition only. A defect in a step fails this request only, whatever turn it is
in (`script`). The steps of a slice end with its connection, because `requests.Steps` are closed then; a whole request
that is held runs to its end, as any request that was received.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ottla.replication.partition_registry import PartitionRegistry
from ottla.replication.produce.batch_preprocessing import inspect_batches, wants_preparation
from ottla.replication.produce.legacy_format_writes import lower_batches
from ottla.replication.produce.message_sets import AT_ONCE, convert_message_sets
from ottla.replication.produce.produce_items import (
    BATCH_VERSION,
    ZSTD_VERSION,
    BatchItem,
    DecodedProduce,
    DeniedBatch,
    without_zstd,
)
from ottla.replication.produce.produce_responses import Refusals, Responses
from ottla.replication.produce.produce_rights import ProduceRights
from ottla.replication.produce.records_appender import Appended, RecordsAppender
from ottla.replication.produce.script import Script, ScriptRun
from ottla.replication.produce.verification import Verification
from ottla.replication.produce.verifier import Verifier
from ottla.requests import Contain
from ottla.seams import Gate, Slot, World
from ottla.wire.apis import ApiKey

_IN_WORKERS: Final = 0
"""Bytes of message sets that a slice converts within its turn, which has enough to do."""


class SlowRequest:
    """One request, or one slice of a request."""

    __slots__ = ("acks", "at_once", "is_held", "items", "slot", "timeout_ms", "transactional_id", "version")

    def __init__(self, slot: Slot, version: int, decoded: DecodedProduce, at_once: int = AT_ONCE) -> None:
        """`at_once`: most bytes of message sets that are converted within the turn."""
        self.slot = slot
        self.version = version
        self.transactional_id, self.acks, self.timeout_ms, items = decoded
        self.items = list(items)
        self.at_once = at_once
        self.is_held = False
        """Whether the frame was kept and the connection's next request waits."""

    def replace_items(self, before: Sequence[BatchItem], after: Sequence[BatchItem]) -> None:
        """Replace the items that no step has replaced yet: by those of the frame that outlives this turn.

        A denied item stays: the frame still has its records.
        """
        for at, item in enumerate(self.items):
            if item is before[at] and not isinstance(item[2], DeniedBatch):
                self.items[at] = after[at]


class SlowProduce:
    """Runs requests that may have to wait between their steps."""

    def __init__(
        self,
        world: World,
        hosted: PartitionRegistry,
        appender: RecordsAppender,
        decode: Sequence[Callable[[memoryview, int], DecodedProduce]],
        verifier: Verifier | None,
        contain: Contain,
        rights: ProduceRights | None = None,
    ) -> None:
        """`decode`: by version. `contain` handles defects in later turns. `rights`: for slices; None: everything is
        allowed."""
        self._rights = rights
        self._world = world
        self._hosted = hosted
        self._appender = appender
        self._decode = decode
        self._verifier = verifier
        self._contain = contain

    def run_request(
        self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int, decoded: DecodedProduce
    ) -> Gate:
        """Run the script of a whole request. When it has to wait, the frame is held, and the connection waits."""
        request = SlowRequest(slot, version, decoded)

        def hold() -> None:
            held = self._world.network.hold_frame(slot, frame)
            request.replace_items(decoded[3], self._decode[version](held, pos)[3])
            request.is_held = True

        def fail(error: Exception) -> None:
            self._contain(error, slot, ApiKey.PRODUCE, version, correlation_id, None)

        has_ended = ScriptRun(self._answer_request(request, correlation_id), hold, fail).start()
        return Gate.NEXT if has_ended else Gate.WAIT

    def _answer_request(self, request: SlowRequest, correlation_id: int) -> Script[None]:
        appended = yield from self._append_request(request)
        # 6. Answer; with acks=all when the batches are committed.
        self._appender.respond_or_wait(
            request.slot, request.version, correlation_id, request.acks, request.timeout_ms, appended
        )

    def answer_slice(self, slot: Slot, version: int, decoded: DecodedProduce) -> Script[tuple[Responses, Refusals]]:
        """The script of a slice of a large request, whose frame is held already. Returns its rows once all are settled,
        so that the next slice does not overtake it."""
        transactional_id, acks, timeout_ms, items = decoded
        if BATCH_VERSION <= version < ZSTD_VERSION:
            items = without_zstd(items)
        if self._rights is not None:
            items = self._rights.refuse_denied(slot.peer, transactional_id, items)
        request = SlowRequest(slot, version, (transactional_id, acks, timeout_ms, items), _IN_WORKERS)
        answers, refused, late = yield from self._append_request(request)
        # 6. Answer.
        refusals = refused or {}
        self._appender.count_failures(version, answers, refusals)
        if late and acks:
            yield self._appender.wait_for_commit(late, acks, answers, refusals, timeout_ms)
        return answers, refusals

    def _append_request(self, request: SlowRequest) -> Script[Appended]:
        """The steps of every request up to its appends, in their order."""
        world, version, items, owner = self._world, request.version, request.items, request.slot.peer
        topics = self._appender.topics[version]
        # 1. Convert: the message sets of old clients become batches.
        if version < BATCH_VERSION:
            yield from convert_message_sets(world, topics, items, owner, request.at_once)
        if self._hosted.preparing and wants_preparation(topics, items):
            # 2. Inspect the records of compacted topics, and recompress for topics with a codec of their own.
            yield from inspect_batches(world, topics, items, owner)
            # 3. Lower: batches become messages where the log has an older format. That is after the inspection, which
            #    knows batches only, and late, because the messages fit one offset. A transaction's batches, which the
            #    next step may hold up, are not among them: these formats cannot store them.
            yield from lower_batches(world, topics, items, owner)
        verification = None
        try:
            # 4. Verify: the coordinator confirms the partitions in which a transaction begins. That is the last step
            #    that waits, because another request may open the transaction, or a marker end it, at any time before.
            if request.transactional_id is not None and self._verifier is not None:
                verification = Verification(world.clock, version, items)
                yield from verification.verify_batches(self._verifier, request.transactional_id, topics)
            # 5. Append, all in this turn. The connection's next request may start: it cannot overtake this one now.
            if request.is_held:
                world.network.open_gate(request.slot)
            return self._appender.append_items(version, request.acks, items)
        finally:
            if verification is not None:
                verification.end_verification()
