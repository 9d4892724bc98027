"""Compaction of a broker's logs: which one is next, one pass after the other, and what became of it.

Zone: deterministic. `log.cleaner.threads` passes run beside each other, each a long piece of work on the loop; the
memory for keys is shared out among them. A log that cannot be read is left alone and named; others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.record.validation import EXPANDED_MAX
from ottla.seams import Clock, Failure, Kind, Workers
from ottla.storage.cleaning.batch_retention import LastBatch, RetentionBounds
from ottla.storage.cleaning.cleanable_logs import CleanableRange, CompactionRules, SegmentFacts, cleanable, dirtiest
from ottla.storage.cleaning.cleaning_pass import Cleaned, CleaningPass, CleaningTask, Damaged, WorkerLost
from ottla.storage.cleaning.steps import Steps, Wait, go
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.producers.producer_state import ProducerState
from ottla.types import TopicPartition

# How long compaction has to wait after it has read or written: log.cleaner.io.max.bytes.per.second. Arithmetic;
# whoever asks tells the time.

_SECOND_NS: Final = 1_000_000_000


class CleaningThrottle:
    """Bytes per second of all passes together; time that nobody used is lost."""

    __slots__ = ("_free_ns", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        """Bytes per second."""
        self._free_ns = 0

    def charge(self, size: int, now_ns: int) -> int:
        """So many bytes have moved; the nanoseconds to wait before more do."""
        if self.rate <= 0:
            return _SECOND_NS
        self._free_ns = max(self._free_ns, now_ns) + int(size * _SECOND_NS / self.rate)
        return self._free_ns - now_ns


_logger = logging.getLogger(__name__)
LOGS_PER_TURN: Final = 64
"""Logs that are looked at in one turn when the next one is chosen."""
BACKOFF_MIN_MS: Final = 10
"""Whatever log.cleaner.backoff.ms says: without a pause the search for something to do would be all that is done."""
REST_NS: Final = 60_000_000_000
"""For so long a log is left alone whose pass failed for a reason that may pass, so that others have their turn."""
LOSSES_MAX: Final = 3
"""Passes in a row over which a worker may die: then it is the log that does it."""
_MS: Final = 1_000_000
_UNPACED: Final = 1e18


class CleaningRun(NamedTuple):
    """The last pass, in numbers."""

    cleaned: Cleaned
    seconds: float


class LastBatches:
    """What the judge asks of a log's producers; as they are when it asks."""

    __slots__ = ("_producers",)

    def __init__(self, producers: ProducerState) -> None:
        self._producers = producers

    def get(self, producer_id: int, /) -> LastBatch | None:
        """The producer with this id; None when the log does not know it (any more)."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        return LastBatch(producer.epoch, producer.batches[-1][1] if producer.batches else -1)


class Cleaner:
    """The compaction of one broker."""

    def __init__(
        self,
        homes: Sequence[LogDirContext],
        dirs: Sequence[LogDir],
        workers: Workers,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self._places = list(zip(homes, dirs, strict=True))
        self._workers = workers
        self._clock = clock
        self._config = config
        self._throttle = CleaningThrottle(config.log_cleaner_io_max_bytes_per_second)
        self._running: dict[int, Steps[None]] = {}
        """By number: what goes on beside each other."""
        self._busy: dict[int, tuple[Log, CleaningPass]] = {}
        """What each of them works on."""
        self._resting: dict[int, tuple[Log, int]] = {}
        """By id: logs that are left alone, and until when."""
        self._compacted: dict[int, dict[TopicPartition, Log]] = {}
        """By id of their directory: logs whose topics are compacted."""
        self._looked_ns = clock.now().mono_ns
        self.max_dirty_ratio = 0.0
        """Of the logs that could be compacted, at the last look."""
        self.max_delay_ms = 0
        """By how much a record is older than max.compaction.lag.ms and not compacted, at the last look."""
        self.ended = 0
        """Of those that go on beside each other, how many have come to an end that they should not have."""
        self.last: dict[int, CleaningRun] = {}
        """The last pass of each of those that run beside each other."""
        self._started = self.stopped = False

    # -- for whoever measures ------------------------------------------------------------------------------------------

    @property
    def idle_ms(self) -> float:
        """Since it was looked for something to do."""
        return (self._clock.now().mono_ns - self._looked_ns) / _MS

    def uncleanable(self) -> Iterator[tuple[str, list[Log]]]:
        """By directory the logs that are not compacted any more."""
        for _, directory in self._places:
            yield directory.name, [log for log in directory.logs.values() if log.cleaning.uncleanable is not None]

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; the logs are loaded."""
        self._started = True
        self._throttle.rate = self._config.log_cleaner_io_max_bytes_per_second
        if not self._config.log_cleaner_enable:
            return
        for number in range(self._config.log_cleaner_threads):
            if number not in self._running:
                self._running[number] = self._work(number)
                go(self._running[number], self._crashed)

    def configure(self, config: BrokerConfig) -> None:
        """Take changed settings; a pass that is under way keeps its own."""
        self._config = config
        if self._started:
            self.start()

    def stop(self) -> None:
        """No more of it: the logs are about to be closed."""
        self.stopped, self._started = True, False
        for log, _ in self._busy.values():
            try:
                log.cleaning.settle()
            except Failure as failure:
                _logger.error("%s: %s", log.tp, failure)
        passes = [each for _, each in self._busy.values()]
        for steps in self._running.values():
            steps.close()
        for each in passes:
            each.close()
        self._running.clear()

    def _crashed(self, outcome: object) -> None:
        """Its steps never end by themselves. Behind a stop, what they waited for still comes, or fails."""
        if self.stopped:
            return
        self.ended += 1
        assert not isinstance(outcome, Failure), outcome

    # -- one after the other -------------------------------------------------------------------------------------------

    def _work(self, number: int) -> Steps[None]:
        while not self.stopped:
            chosen = None
            if number < self._config.log_cleaner_threads:
                chosen = yield from self._choose()
            if chosen is None:
                yield self._after(max(BACKOFF_MIN_MS, self._config.log_cleaner_backoff_ms) * _MS)
            else:
                yield from self._clean(number, *chosen)

    def _choose(self) -> Steps[tuple[LogDirContext, LogDir, Log, CleanableRange] | None]:
        """The log that needs it most. A few logs a turn."""
        due: list[tuple[int, CleanableRange | None, CompactionRules]] = []
        found: list[tuple[LogDirContext, LogDir, Log, CleanableRange | None]] = []
        for looked, (place, log) in enumerate(self._candidates(), 1):
            facts = self._facts(place[0], log)
            due.append((len(found), facts, _rules(log.config)))
            found.append((*place, log, facts))
            if looked % LOGS_PER_TURN == 0:
                yield self._after(0)
        self._looked_ns = self._clock.now().mono_ns
        seen = [facts for _, facts, _ in due if facts is not None]
        self.max_dirty_ratio = max((facts.ratio for facts in seen), default=0.0)
        self.max_delay_ms = max((facts.delay_ms for facts in seen), default=0)
        slot = dirtiest(due)
        if slot is None:
            return None
        home, directory, log, facts = found[slot]
        return (home, directory, log, facts) if facts is not None and self._may(home, log) else None

    def _candidates(self) -> list[tuple[tuple[LogDirContext, LogDir], Log]]:
        self._wake()
        return [
            (place, log)
            for place in self._places
            for log in self._compacted_in(*place)
            if len(log.segments) > 1 and self._may(place[0], log)
        ]

    def _compacted_in(self, home: LogDirContext, directory: LogDir) -> Collection[Log]:
        """The logs of a directory whose topics are compacted; only what is new since the last look is looked at."""
        found = self._compacted.setdefault(id(directory), {})
        for tp in home.renewed:
            log = directory.logs.get(tp)
            if log is not None and log.config.compact:
                found[tp] = log
            else:
                found.pop(tp, None)
        home.renewed.clear()
        return found.values()

    def _may(self, home: LogDirContext, log: Log) -> bool:
        """Whether somebody may begin with it."""
        free = all(log is not other for other, _ in self._busy.values()) and id(log) not in self._resting
        stays = not log.closed and not self._moves(log)
        return free and stays and home.offline is None and log.cleaning.uncleanable is None

    def _moves(self, log: Log) -> bool:
        """Whether it is being copied to another directory: the copy of a tombstone that goes meanwhile would be missing
        behind copies of what it deleted."""
        moves = (directory.moves for _, directory in self._places)
        return any(log.tp in each.futures or log.tp in each.leaving for each in moves)

    def _wake(self) -> None:
        now = self._clock.now().mono_ns
        self._resting = {key: (log, until) for key, (log, until) in self._resting.items() if until > now}

    def _facts(self, home: LogDirContext, log: Log) -> CleanableRange | None:
        try:
            return self._cleanable(home, log)
        except Failure as failure:
            self._on_failed(home, log, failure.as_value())
            return None

    def _cleanable(self, home: LogDirContext, log: Log) -> CleanableRange | None:
        segments = [
            SegmentFacts(segment.base_offset, segment.size, segment.largest_timestamp) for segment in log.segments
        ]
        unstable = log.first_unstable_offset if home.safeguards.cleans_stable_only else None
        stable = log.high_watermark if unstable is None else min(unstable, log.high_watermark)
        return cleanable(segments, log.cleaned_until, stable, self._clock.now().wall_ms, _rules(log.config))

    def _clean(
        self, number: int, home: LogDirContext, directory: LogDir, log: Log, facts: CleanableRange
    ) -> Steps[None]:
        began = self._clock.now().mono_ns
        try:
            task = self._task(home, log, facts, lambda: self._secure(home, directory, log))
            work = CleaningPass(home, self._workers, task, self._pace)
            self._busy[number] = log, work
            cleaned = yield from work.steps()
        except Failure as failure:
            self._on_failed(home, log, failure.as_value())
            return
        finally:
            self._busy.pop(number, None)
        log.cleaning.checkpoint = cleaned.end_offset
        log.cleaning.losses = 0
        directory.checkpoint_cleaned(log.tp)
        seconds = (self._clock.now().mono_ns - began) / 1e9
        self.last[number] = CleaningRun(cleaned, seconds)
        _logger.info(
            "%s is clean up to offset %d: %d bytes of %d are left, %.1f s",
            log.tp, cleaned.end_offset, cleaned.bytes_after, cleaned.bytes_before, seconds,
        )  # fmt: skip

    @staticmethod
    def _secure(home: LogDirContext, directory: LogDir, log: Log) -> Steps[None]:
        """Nothing goes for the sake of what a power cut may take: later records of a key, markers. And that there may
        be holes between segments from now on, and how far, stands beside the log before the first one is there: beyond
        that a hole is a loss."""
        if home.safeguards.durable_before_cleaned:
            yield log.flush
            yield directory.save_recovery_points
        if log.cleaning.checkpoint is None:
            log.cleaning.checkpoint = log.cleaned_until
            yield partial(directory.save_cleaned, log.tp)

    def _task(
        self, home: LogDirContext, log: Log, facts: CleanableRange, secure: Callable[[], Steps[None]]
    ) -> CleaningTask:
        now_ms = self._clock.now().wall_ms
        return CleaningTask(
            log.tp,
            log.directory,
            log.config,
            log.segments,
            log.cleaning,
            log.start_offset,
            facts.dirty_from,
            facts.until,
            LastBatches(log.producers),
            RetentionBounds(
                now_ms, log.config.delete_retention_ms, log.removable_below, home.safeguards.tombstones_stay
            ),
            self._room,
            EXPANDED_MAX,
            secure,
        )

    @property
    def _room(self) -> int:
        """Bytes of memory for the keys of one pass."""
        config = self._config
        share = config.log_cleaner_io_buffer_load_factor / max(1, config.log_cleaner_threads)
        return int(config.log_cleaner_dedupe_buffer_size * share)

    def _on_failed(self, home: LogDirContext, log: Log, failure: Failure) -> None:
        """The log stays as it is; whatever else is to be cleaned comes next."""
        why = _final(log, failure)
        if why is not None:
            log.cleaning.uncleanable = why
            _logger.error("%s is not compacted any more: %s", log.tp, why)
            return
        self._resting[id(log)] = log, self._clock.now().mono_ns + REST_NS
        if failure.kind is not Kind.CONFLICT:
            home.on_failed(failure)
            _logger.warning("compaction of %s: %s", log.tp, failure)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _after(self, wait_ns: int) -> Wait:
        def wait(done: Callable[[None], None]) -> None:
            timers = self._places[0][0].timers
            timers.add(self._clock.now().mono_ns + wait_ns, lambda: done(None))

        return wait

    def _pace(self, size: int) -> Wait | None:
        if self._throttle.rate >= _UNPACED:
            return None
        wait_ns = self._throttle.charge(size, self._clock.now().mono_ns)
        return self._after(wait_ns) if wait_ns > 0 else None


def _final(log: Log, failure: Failure) -> str | None:
    """Why there is no use in another pass; None when it may end otherwise."""
    if isinstance(failure, Damaged):
        return failure.message
    if isinstance(failure, WorkerLost):
        log.cleaning.losses += 1
        if log.cleaning.losses >= LOSSES_MAX:
            return f"{LOSSES_MAX} times in a row {failure.message}"
    return None


def _rules(config: TopicConfig) -> CompactionRules:
    return CompactionRules(config.min_cleanable_dirty_ratio, config.min_compaction_lag_ms, config.max_compaction_lag_ms)
