"""Compacts a broker's logs: chooses the next one, runs the passes and records their results.

Zone: deterministic. `log.cleaner.threads` passes run concurrently, each as a series of steps on the loop; they
share the memory for keys. A log that cannot be read is reported and skipped; the others continue.
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
from ottla.storage.cleaning.cleanable_logs import (
    CleanableRange,
    CompactionRules,
    SegmentFacts,
    cleanable_range,
    dirtiest_log,
)
from ottla.storage.cleaning.cleaning_pass import Cleaned, CleaningPass, CleaningTask, Damaged, WorkerLost
from ottla.storage.cleaning.steps import Steps, Wait, run_steps
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.producers.producer_state import ProducerState
from ottla.types import TopicPartition

# How long compaction has to wait after it has read or written: log.cleaner.io.max.bytes.per.second. Arithmetic;
# the caller passes the time.

_SECOND_NS: Final = 1_000_000_000


class CleaningThrottle:
    """Limits the bytes per second of all passes together; unused time does not add up."""

    __slots__ = ("_free_ns", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        """Bytes per second."""
        self._free_ns = 0

    def charge_bytes(self, size: int, now_ns: int) -> int:
        """Count `size` bytes as moved; returns the nanoseconds to wait before more are."""
        if self.rate <= 0:
            return _SECOND_NS
        self._free_ns = max(self._free_ns, now_ns) + int(size * _SECOND_NS / self.rate)
        return self._free_ns - now_ns


_logger = logging.getLogger(__name__)
LOGS_PER_TURN: Final = 64
"""Logs that are examined in one turn when the next one is chosen."""
BACKOFF_MIN_MS: Final = 10
"""The least pause, whatever log.cleaner.backoff.ms is: without one, the loop would only search for a log to clean."""
REST_NS: Final = 60_000_000_000
"""How long a log is skipped after its pass failed for a temporary reason, so that others have their turn."""
LOSSES_MAX: Final = 3
"""Passes in a row over which a worker may die; after that the log is taken for the cause."""
_MS: Final = 1_000_000
_UNPACED: Final = 1e18


class CleaningRun(NamedTuple):
    """The last pass, in numbers."""

    cleaned: Cleaned
    seconds: float


class LastBatches:
    """The producers of a log as `BatchRetention` needs them, in their present state."""

    __slots__ = ("_producers",)

    def __init__(self, producers: ProducerState) -> None:
        self._producers = producers

    def get(self, producer_id: int, /) -> LastBatch | None:
        """The producer with this id; None when the log does not know it, or no longer knows it."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        return LastBatch(producer.epoch, producer.batches[-1][1] if producer.batches else -1)


class Cleaner:
    """The compaction of one broker."""

    def __init__(
        self,
        dirs: Sequence[LogDir],
        workers: Workers,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self._places = [(each.home, each) for each in dirs]
        self._workers = workers
        self._clock = clock
        self._config = config
        self._throttle = CleaningThrottle(config.log_cleaner_io_max_bytes_per_second)
        self._running: dict[int, Steps[None]] = {}
        """By number: the concurrent workers, as Kafka's cleaner threads."""
        self._busy: dict[int, tuple[Log, CleaningPass]] = {}
        """By the same number: the log and the pass that each of them works on."""
        self._resting: dict[int, tuple[Log, int]] = {}
        """By id: logs that are skipped after a failure, and until when."""
        self._compacted: dict[int, dict[TopicPartition, Log]] = {}
        """By id of their directory: logs whose topics are compacted."""
        self._looked_ns = clock.now().mono_ns
        self.max_dirty_ratio = 0.0
        """The largest one among the logs that could be compacted, at the last search."""
        self.max_delay_ms = 0
        """The most by which a record that is not compacted exceeds max.compaction.lag.ms, at the last search."""
        self.ended = 0
        """How many of the concurrent workers have ended, which they never should."""
        self.last: dict[int, CleaningRun] = {}
        """The last pass of each of the concurrent workers."""
        self._started = self.stopped = False

    # -- for metrics ---------------------------------------------------------------------------------------------------

    @property
    def idle_ms(self) -> float:
        """Time since the last search for a log to compact."""
        return (self._clock.now().mono_ns - self._looked_ns) / _MS

    def uncleanable_logs(self) -> Iterator[tuple[str, list[Log]]]:
        """By directory, the logs that are no longer compacted."""
        for _, directory in self._places:
            yield directory.name, [log for log in directory.logs.values() if log.cleaning.uncleanable is not None]

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start_workers(self) -> None:
        """Start the workers; call it once the logs are loaded."""
        self._started = True
        self._throttle.rate = self._config.log_cleaner_io_max_bytes_per_second
        if not self._config.log_cleaner_enable:
            return
        for number in range(self._config.log_cleaner_threads):
            if number not in self._running:
                self._running[number] = self._run_worker(number)
                run_steps(self._running[number], self._on_worker_ended)

    def apply_config(self, config: BrokerConfig) -> None:
        """Take changed settings; a pass in progress keeps the old ones."""
        self._config = config
        if self._started:
            self.start_workers()

    def stop_workers(self) -> None:
        """Stop all passes, before the logs are closed."""
        self.stopped, self._started = True, False
        for log, _ in self._busy.values():
            try:
                log.cleaning.finish_exchange()
            except Failure as failure:
                _logger.error("%s: %s", log.tp, failure)
        # Collected first: closing the steps runs their `finally` clauses, which remove the passes from `_busy`.
        passes = [each for _, each in self._busy.values()]
        for steps in self._running.values():
            steps.close()
        for each in passes:
            each.close_files()
        self._running.clear()

    def _on_worker_ended(self, outcome: object) -> None:
        """Count a worker that ended: it should not, before `stop_workers`. After that, what it waited for still
        completes."""
        if self.stopped:
            return
        self.ended += 1
        assert not isinstance(outcome, Failure), outcome

    # -- one after the other -------------------------------------------------------------------------------------------

    def _run_worker(self, number: int) -> Steps[None]:
        while not self.stopped:
            chosen = None
            if number < self._config.log_cleaner_threads:
                chosen = yield from self._choose_log()
            if chosen is None:
                yield self._wait_for(max(BACKOFF_MIN_MS, self._config.log_cleaner_backoff_ms) * _MS)
            else:
                yield from self._clean_log(number, *chosen)

    def _choose_log(self) -> Steps[tuple[LogDirContext, LogDir, Log, CleanableRange] | None]:
        """The log that needs compaction most. Examines a few logs per turn."""
        due: list[tuple[int, CleanableRange | None, CompactionRules]] = []
        found: list[tuple[LogDirContext, LogDir, Log, CleanableRange | None]] = []
        for looked, (place, log) in enumerate(self._candidate_logs(), 1):
            facts = self._cleanable_or_none(place[0], log)
            due.append((len(found), facts, _compaction_rules(log.config)))
            found.append((*place, log, facts))
            if looked % LOGS_PER_TURN == 0:
                yield self._wait_for(0)
        self._looked_ns = self._clock.now().mono_ns
        seen = [facts for _, facts, _ in due if facts is not None]
        self.max_dirty_ratio = max((facts.ratio for facts in seen), default=0.0)
        self.max_delay_ms = max((facts.delay_ms for facts in seen), default=0)
        slot = dirtiest_log(due)
        if slot is None:
            return None
        home, directory, log, facts = found[slot]
        # Checked again: the search took several turns, in which another worker may have begun with this log.
        return (home, directory, log, facts) if facts is not None and self._may_clean(home, log) else None

    def _candidate_logs(self) -> list[tuple[tuple[LogDirContext, LogDir], Log]]:
        self._drop_expired_rests()
        return [
            (place, log)
            for place in self._places
            for log in self._compacted_in(*place)
            if len(log.segments) > 1 and self._may_clean(place[0], log)
        ]

    def _compacted_in(self, home: LogDirContext, directory: LogDir) -> Collection[Log]:
        """The logs of a directory whose topics are compacted; examines only what changed since the last search."""
        found = self._compacted.setdefault(id(directory), {})
        for tp in home.renewed:
            log = directory.logs.get(tp)
            if log is not None and log.config.compact:
                found[tp] = log
            else:
                found.pop(tp, None)
        home.renewed.clear()
        return found.values()

    def _may_clean(self, home: LogDirContext, log: Log) -> bool:
        """Whether a worker may begin with the log."""
        free = all(log is not other for other, _ in self._busy.values()) and id(log) not in self._resting
        stays = not log.closed and not self._is_moving(log)
        return free and stays and home.offline is None and log.cleaning.uncleanable is None

    def _is_moving(self, log: Log) -> bool:
        """Whether the log is being copied to another directory: the copy would have records without the tombstone that
        deletes them, if compaction removed that one before it is copied."""
        moves = (directory.moves for _, directory in self._places)
        return any(log.tp in each.futures or log.tp in each.replaced for each in moves)

    def _drop_expired_rests(self) -> None:
        now = self._clock.now().mono_ns
        self._resting = {key: (log, until) for key, (log, until) in self._resting.items() if until > now}

    def _cleanable_or_none(self, home: LogDirContext, log: Log) -> CleanableRange | None:
        try:
            return self._find_cleanable(log)
        except Failure as failure:
            self._on_failed(home, log, failure.as_value())
            return None

    def _find_cleanable(self, log: Log) -> CleanableRange | None:
        segments = [
            SegmentFacts(segment.base_offset, segment.size, segment.largest_timestamp) for segment in log.segments
        ]
        # Whether records of an open transaction count is decided by its marker: nothing from there on is compacted.
        unstable = log.first_unstable_offset
        stable = log.high_watermark if unstable is None else min(unstable, log.high_watermark)
        return cleanable_range(
            segments, log.cleaned_until, stable, self._clock.now().wall_ms, _compaction_rules(log.config)
        )

    def _clean_log(
        self, number: int, home: LogDirContext, directory: LogDir, log: Log, facts: CleanableRange
    ) -> Steps[None]:
        began = self._clock.now().mono_ns
        try:
            task = self._make_task(log, facts, lambda: self._make_inputs_durable(directory, log))
            work = CleaningPass(home, self._workers, task, self._throttle_wait)
            self._busy[number] = log, work
            cleaned = yield from work.run_steps()
        except Failure as failure:
            self._on_failed(home, log, failure.as_value())
            return
        finally:
            self._busy.pop(number, None)
        # After the last swap: a checkpoint ahead of it would, after a crash, let records pass as clean that no pass has
        # seen.
        log.cleaning.checkpoint = cleaned.end_offset
        log.cleaning.worker_losses = 0
        directory.offsets.checkpoint_cleaned(log.tp)
        seconds = (self._clock.now().mono_ns - began) / 1e9
        self.last[number] = CleaningRun(cleaned, seconds)
        _logger.info(
            "%s is clean up to offset %d: %d bytes of %d are left, %.1f s",
            log.tp, cleaned.end_offset, cleaned.bytes_after, cleaned.bytes_before, seconds,
        )  # fmt: skip

    @staticmethod
    def _make_inputs_durable(directory: LogDir, log: Log) -> Steps[None]:
        """Make durable what the removals of the pass depend on.

        A record is removed because of later records of its key, or a marker: a power cut must not take those. And the
        checkpoint of the cleaner is written before the first hole between segments: above it, recovery takes a hole
        for a loss.
        """
        yield log.flush
        yield directory.offsets.save_recovery_points
        if log.cleaning.checkpoint is None:
            log.cleaning.checkpoint = log.cleaned_until
            yield partial(directory.offsets.save_cleaned, log.tp)

    def _make_task(self, log: Log, facts: CleanableRange, secure: Callable[[], Steps[None]]) -> CleaningTask:
        now_ms = self._clock.now().wall_ms
        return CleaningTask(
            log.tp,
            log.metadata.directory,
            log.config,
            log.segments,
            log.cleaning,
            log.start_offset,
            facts.dirty_from,
            facts.until,
            LastBatches(log.producers),
            RetentionBounds(now_ms, log.config.delete_retention_ms, log.removable_below),
            self._key_memory_bytes,
            EXPANDED_MAX,
            secure,
        )

    @property
    def _key_memory_bytes(self) -> int:
        """Bytes of memory for the keys of one pass."""
        config = self._config
        share = config.log_cleaner_io_buffer_load_factor / max(1, config.log_cleaner_threads)
        return int(config.log_cleaner_dedupe_buffer_size * share)

    def _on_failed(self, home: LogDirContext, log: Log, failure: Failure) -> None:
        """Leave the log as it is, for good or for some time; the next search chooses among the others."""
        why = _final_reason(log, failure)
        if why is not None:
            log.cleaning.uncleanable = why
            _logger.error("%s is not compacted any more: %s", log.tp, why)
            return
        # The log is kept beside its id: as long as it is referenced, no other object can get the same id.
        self._resting[id(log)] = log, self._clock.now().mono_ns + REST_NS
        # CONFLICT is the normal end of a pass whose log was cut, deleted or moved.
        if failure.kind is not Kind.CONFLICT:
            home.on_failed(failure)
            _logger.warning("compaction of %s: %s", log.tp, failure)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _wait_for(self, wait_ns: int) -> Wait:
        def wait(done: Callable[[None], None]) -> None:
            timers = self._places[0][0].timers
            timers.add_timer(self._clock.now().mono_ns + wait_ns, lambda: done(None))

        return wait

    def _throttle_wait(self, size: int) -> Wait | None:
        if self._throttle.rate >= _UNPACED:
            return None
        wait_ns = self._throttle.charge_bytes(size, self._clock.now().mono_ns)
        return self._wait_for(wait_ns) if wait_ns > 0 else None


def _final_reason(log: Log, failure: Failure) -> str | None:
    """Why another pass would fail as well; None when it may succeed."""
    if isinstance(failure, Damaged):
        return failure.message
    if isinstance(failure, WorkerLost):
        log.cleaning.worker_losses += 1
        if log.cleaning.worker_losses >= LOSSES_MAX:
            return f"{LOSSES_MAX} times in a row {failure.message}"
    return None


def _compaction_rules(config: TopicConfig) -> CompactionRules:
    return CompactionRules(config.min_cleanable_dirty_ratio, config.min_compaction_lag_ms, config.max_compaction_lag_ms)
