"""Dead letters: find the open ones, send them back, or delete them.

Zone: real. The committed offsets of a group record which letters are settled (`window`), as with the mover: a redrive
writes the record and the new position in one transaction, so that a letter is sent back exactly once. The log keeps
settled letters until they are purged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final, NamedTuple

from ottla.client.admin.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import ProducerFencedError, values_of
from ottla.client.producer import Producer
from ottla.client.settings import ClientConfig
from ottla.retry.destinations import Destinations
from ottla.retry.errors import RetryError
from ottla.retry.headers import SPRING, Names, Trail, read_trail, with_trail
from ottla.retry.offset_metadata import parse_position, position_of
from ottla.retry.policy import DEAD_SUFFIX, origin_of
from ottla.retry.record_cache import RecordCache
from ottla.retry.window import MAX_TEXT, Window
from ottla.types import TopicPartition

ClientSettings = dict[str, str | int | bool]

GROUP: Final = "ottla-dlq"
MAX_REDRIVES: Final = 3
_BATCH: Final = 200
_ENDINGS: Final = (DEAD_SUFFIX, "-dlt", ".dlt", ".dlq", "-dlq")


def is_dead_topic(name: str) -> bool:
    """Whether a name is that of a dead-letter topic: ours, Spring's, of share groups, and others."""
    return name.endswith(_ENDINGS) or name.startswith("dlq.")


class DeadLetter(NamedTuple):
    """A dead letter."""

    record: ConsumerRecord
    trail: Trail
    is_open: bool
    """Neither sent back nor purged."""

    @property
    def reason(self) -> str:
        """The class of the exception, by which letters are grouped."""
        return self.trail.failure.kind if self.trail.failure is not None else "unknown"


@dataclass(slots=True)
class Redriven:
    """What a redrive did."""

    back: dict[str, int] = field(default_factory=dict)
    """Letters sent, by topic."""
    looping: int = 0
    """Letters skipped because they were sent back too often already."""
    nowhere: int = 0
    """Letters skipped because their headers name no origin, or the origin is this topic."""

    @property
    def total(self) -> int:
        """Letters sent."""
        return sum(self.back.values())


Select = Callable[[DeadLetter], bool]


class DeadLetters:
    """The dead letters of one topic. Use it in a `with` statement, or close it."""

    def __init__(self, settings: ClientSettings, topic: str, *, group: str = GROUP, names: Names = SPRING) -> None:
        """settings: of all clients, by Kafka's keys. Raises ConfigError, RefusedError if the topic does not exist."""
        own: dict[str, str | int | bool] = {"isolation.level": "read_committed"}
        reading: dict[str, str | int | bool] = {
            "group.id": group,
            "enable.auto.commit": False,
            "max.poll.records": 2_000,
        }
        self.topic = topic
        self._settings = settings
        self._names = names
        self._group = group
        self._cluster = Cluster(ClientConfig.from_mapping({**settings, **own}))
        self._consumer = Consumer({**settings, **own, **reading})
        try:
            self._partitions = self._consumer.partitions_for_topic(topic)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
        self._cluster.close()

    def letters(self, *, settled: bool = False) -> Iterator[DeadLetter]:
        """The open letters, up to the present end of the topic; with `settled` also those that are settled."""
        yield from self._read_windows(self._open_windows(settled), settled)

    def redrive(
        self,
        select: Select = lambda _letter: True,
        *,
        to: str | None = None,
        limit: int | None = None,
        per_second: float | None = None,
        max_redrives: int = MAX_REDRIVES,
        dry_run: bool = False,
        on_sent: Callable[[int], object] = lambda _count: None,
    ) -> Redriven:
        """Send open letters back to the topics they came from, each once; their attempts are counted from zero again.

        to: another topic. limit: the most letters to send. per_second: the most letters per second. max_redrives: skip
        letters that were sent back this often, because they would only fail again. dry_run: only count.
        Raises ClientError; letters sent by then are settled, and the next call sends the rest. Raises RetryError when
        another redrive or purge of the topic has begun meanwhile.
        """
        sent = Redriven()
        with nullcontext() if dry_run else self._open_producer() as producer:
            windows = self._open_windows(settled=False)
            chosen: list[tuple[TopicPartition, int]] = []
            for letter in self._read_windows(windows, settled=False):
                if limit is not None and len(chosen) >= limit:
                    continue  # read on: positions can be committed only when all was read
                if select(letter) and (target := self._target_topic(letter, to, max_redrives, sent)) is not None:
                    chosen.append((_partition_of(letter), letter.record.offset))
                    if dry_run:
                        sent.back[target] = sent.back.get(target, 0) + 1
            if chosen and producer is not None:
                self._send_letters(producer, chosen, windows, to, per_second, sent, on_sent)
        return sent

    def purge(
        self,
        select: Select = lambda _letter: True,
        *,
        dry_run: bool = False,
        before: Callable[[int], object] = lambda _count: None,
    ) -> int:
        """Purge open letters: settle them, and delete the records before the first open one from the log.

        before: called with the number of letters before the first is settled; an exception of it ends the call.
        Returns how many. Raises ClientError; RetryError when a redrive or another purge of the topic has begun
        meanwhile, and then nothing was purged.
        """
        with nullcontext() if dry_run else self._open_producer() as producer:
            windows = self._open_windows(settled=False)
            chosen = [
                (_partition_of(each), each.record.offset)
                for each in self._read_windows(windows, settled=False)
                if select(each)
            ]
            if producer is None or not chosen:
                return len(chosen)
            before(len(chosen))
            for tp, offset in chosen:
                windows[tp].mark_forwarded([offset])
            # Settle first, delete last: after a crash in between, the letters are settled and only still in the log.
            places = {tp: position_of(window, "") for tp, window in windows.items()}
            for tp, place in places.items():
                _check_size(tp, place.metadata)
            with producer.transaction():
                producer.send_offsets_to_transaction(places, self._group)
        values_of(Admin(self._cluster).delete_records({tp: place.offset for tp, place in places.items()}))
        return len(chosen)

    # -- inside --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _open_producer(self) -> Iterator[Producer]:
        """A producer with the transactional id of this topic's letters.

        The id is taken before the positions are read: from then on an earlier redrive or purge can settle nothing more,
        and the positions contain everything that it has settled.
        """
        own: ClientSettings = {"transactional.id": f"{self._group}-{self.topic}", "linger.ms": 0}
        try:
            with Producer({**self._settings, **own}) as producer:
                producer.init_transactions()
                yield producer
        except ProducerFencedError as error:
            raise RetryError(
                f"another redrive or purge of {self.topic} has begun, so this one stopped",
                "Wait until the other one has ended, then start this one again",
            ) from error

    def _open_windows(self, settled: bool) -> dict[TopicPartition, Window]:
        """Seek to the first open letter, or with `settled` to the start of the log; the window of each partition."""
        self._consumer.assign(self._partitions)
        starts = self._consumer.beginning_offsets(self._partitions)
        found = {}
        for tp, committed in self._consumer.committed(self._partitions).items():
            start = starts[tp]
            if committed is None:
                window = Window(start)
            else:
                place = parse_position(tp, committed)
                window = Window(place.low, place.handed)
                # Retention or an earlier purge may have deleted the letters below.
                window.advance_end(start)
            found[tp] = window
            self._consumer.seek(tp, start if settled else max(start, window.low))
        return found

    def _read_windows(self, windows: dict[TopicPartition, Window], settled: bool) -> Iterator[DeadLetter]:
        # The ends are read once: letters that arrive from here on, also those that failed again after they were sent
        # back, are left to the next call. Without that a redrive of a hopeless letter would not end.
        ends = self._consumer.end_offsets(self._partitions)
        while any(self._consumer.position(tp) < end for tp, end in ends.items()):
            for record in self._consumer.poll(1.0):
                tp = TopicPartition(record.topic, record.partition)
                if record.offset < ends[tp]:
                    is_open = windows[tp].add_read(record.offset)
                    if is_open or settled:
                        yield DeadLetter(record, read_trail(record.headers, self._names), is_open)
        for tp, end in ends.items():
            # The last offsets may be transaction markers, which no poll returns.
            windows[tp].advance_end(end)

    def _target_topic(self, letter: DeadLetter, to: str | None, max_redrives: int, sent: Redriven) -> str | None:
        target = to or _origin_topic(letter)
        if target is None or target == self.topic or origin_of(target) is not None:
            sent.nowhere += 1
            return None
        if letter.trail.redrives >= max_redrives:
            sent.looping += 1
            return None
        return target

    def _send_letters(
        self,
        producer: Producer,
        chosen: Sequence[tuple[TopicPartition, int]],
        windows: dict[TopicPartition, Window],
        to: str | None,
        per_second: float | None,
        sent: Redriven,
        on_sent: Callable[[int], object],
    ) -> None:
        # A fifth of a second's letters per transaction keeps the rate even within a second.
        size = _BATCH if per_second is None else max(1, min(_BATCH, int(per_second / 5)))
        payloads, destinations = RecordCache(self._cluster), Destinations(self._cluster)
        began = time.monotonic()
        for at in range(0, len(chosen), size):
            if per_second is not None:
                time.sleep(max(0.0, began + at / per_second - time.monotonic()))
            some = payloads.take_records(chosen[at : at + size])
            self._send_batch(producer, destinations, some, windows, to, sent)
            on_sent(len(some))

    def _send_batch(
        self,
        producer: Producer,
        destinations: Destinations,
        some: dict[tuple[TopicPartition, int], ConsumerRecord],
        windows: dict[TopicPartition, Window],
        to: str | None,
        sent: Redriven,
    ) -> None:
        letters = [DeadLetter(record, read_trail(record.headers, self._names), True) for record in some.values()]
        targets = [to or _origin_topic(letter) or "" for letter in letters]
        destinations.refresh_topics(targets)
        for target in targets:
            if (missing := destinations.missing_topic_error(target)) is not None:
                raise missing
        for tp, offset in some:
            windows[tp].mark_forwarded([offset])
        places = {tp: position_of(windows[tp], "") for tp, _ in some}
        for tp, place in places.items():
            _check_size(tp, place.metadata)
        with producer.transaction():
            for letter, target in zip(letters, targets, strict=True):
                record, trail = letter.record, letter.trail
                again = replace(trail, attempts=1, due_ms=None, failure=None, passes=0, redrives=trail.redrives + 1)
                producer.send(
                    target, record.value, key=record.key, headers=with_trail(record.headers, again, self._names)
                )
            producer.send_offsets_to_transaction(places, self._group)
        for target in targets:
            sent.back[target] = sent.back.get(target, 0) + 1


def _partition_of(letter: DeadLetter) -> TopicPartition:
    return TopicPartition(letter.record.topic, letter.record.partition)


def _origin_topic(letter: DeadLetter) -> str | None:
    """The topic that a letter is sent back to: from its headers, or else from its topic's name, if that is ours."""
    trail, topic = letter.trail, letter.record.topic
    named = topic.removesuffix(DEAD_SUFFIX) if topic.endswith(DEAD_SUFFIX) else None
    return trail.back_to or (trail.origin.topic if trail.origin is not None else named) or None


def _check_size(tp: TopicPartition, metadata: str) -> None:
    if len(metadata) > MAX_TEXT + 50:
        raise RetryError(
            f"{tp}: too many gaps between settled and open letters to store in the group's offset",
            "Redrive or purge more letters at once, beginning with the oldest",
        )


def dead_topics(cluster: Cluster) -> list[str]:
    """All topics with the name of a dead-letter topic. Raises ClientError."""
    return sorted(each.name for each in Admin(cluster).list_topics() if is_dead_topic(each.name))
