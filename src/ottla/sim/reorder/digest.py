"""The whole state of a harness and its producer as a few bytes: runs from equal states continue in the same way.

Zone: deterministic. Covers everything that can make a difference. A detail too many only makes equal states look
different, which costs time. Times are absolute, so the same state at another time counts as different.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from ottla.replication.partition.partition import Partition
from ottla.sim.reorder.client import Producer
from ottla.sim.reorder.harness import Harness
from ottla.sim.reorder.network import Sent
from ottla.sim.reorder.partitions import PLACES

_CORRELATION = slice(4, 8)
"""Position of the correlation id in a frame: it differs from path to path, and has no effect."""


def state_digest(stage: Harness, producer: Producer, more: Iterable[object]) -> bytes:
    """A digest of 16 bytes. `more` is the state of the schedule itself."""
    sha = hashlib.blake2b(digest_size=16)
    for content in _log_contents(stage):
        sha.update(len(content).to_bytes(4, "big"))
        sha.update(content)
    sha.update(repr((list(_state_facts(stage)), producer.state_facts(), list(more))).encode())
    return sha.digest()


def request_identity(sent: Sent) -> object:
    """The identity of a request, without its correlation id."""
    return sent.peer.listener, sent.lane, sent.frame[: _CORRELATION.start], sent.frame[_CORRELATION.stop :]


def _log_contents(stage: Harness) -> Iterator[bytes]:
    for place in PLACES:
        log = stage.find_partition(place).log
        start, end = 0, log.end_offset
        while start < end:
            region = log.read(start, 1 << 20, end, True, True)
            assert region is not None, "there is something below the end"
            content = bytearray(region.size)
            region.file.read_now(region.pos, memoryview(content))
            yield bytes(content)
            start = end


def _state_facts(stage: Harness) -> Iterator[object]:
    yield stage.timeline.now_ns, stage.held, [request_identity(sent) for sent in stage.outbox]
    for place in PLACES:
        yield _partition_facts(stage.find_partition(place))
    purgatory: Any = stage.purgatory
    wheel = purgatory._wheel
    yield sorted(timer.deadline_ms for bucket in wheel._buckets.values() for timer in bucket)
    verifier: Any = stage.verifier
    yield [_question_facts(each) for each in verifier._waiting]
    yield {node: [_question_facts(each) for each in behind] for node, behind in verifier._queued.items()}
    yield from _coordinator_facts(stage)


def _partition_facts(partition: Partition) -> object:
    some: Any = partition.leader_role
    guards = [(key, guard.holders, guard.passed) for key, guard in some.guards._asked.items()]
    refusals = some._refusals
    log = partition.log
    producers = [(*known.to_snapshot_entry(), *known.batches) for known in log.producers]
    roles = partition.leader_epoch, some._led_ns, log.producers.cautious
    return partition.high_watermark, roles, guards, refusals.waiting, refusals._gave_up, refusals._lost, producers


def _question_facts(question: Any) -> object:
    return question.transactional_id, question.producer_id, question.epoch, question.partitions, question.since_ns


def _coordinator_facts(stage: Harness) -> Iterator[object]:
    transactions: Any = stage.coordinators.transactions
    queue = transactions._markers
    yield queue._busy
    for job in queue._jobs.values():
        yield job.markers, list(job.todo), list(job.in_flight), job.failures, job.not_before_ns
    for machine in transactions.machines():
        yield machine.transactions, sorted((name, sorted(left)) for name, left in machine.unmarked.items())
        yield machine._timeouts_ns, machine._expiry_ns, list(machine._ongoing), list(machine._complete)
    groups: Any = stage.coordinators.groups
    for shard in groups.shards():
        offsets = shard.offsets
        yield offsets._held, offsets._pending
    for coordinator in (transactions.coordinator, groups.coordinator):
        for runner in coordinator._runners.values():
            yield runner.state, runner.applied, len(runner._parking), runner._alarm_ns
