"""The context that the logs of one log directory share: disk, clock, deferred removal, and whether the disk works.

Zone: deterministic. One `LogDirContext` per directory, which creates it. A failing disk takes this directory offline
for good and calls `on_offline`; the listener finds the partitions that it affects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from ottla.errors import ApiError, ErrorCode
from ottla.seams import Clock, Disk, Done, Entropy, Failure, Kind, Workers
from ottla.storage.checkpoints import CorruptCheckpoint, parse_offsets
from ottla.storage.producers.producer_expiry import ProducerExpiry
from ottla.storage.segments.scan import HeaderScan, read_file
from ottla.storage.timers import Timers
from ottla.types import TopicPartition

_logger = logging.getLogger(__name__)

_FULL_TELL_NS: Final = 60_000_000_000
_SHOWN_NS: Final = 500_000_000
_SHOWN_IN_TURN: Final = 32
"""Segments whose entries are written in a turn: two writes of some bytes each."""
_SHOWN_PAUSE_NS: Final = 1_000_000


class ShowsEntries(Protocol):
    """A segment, as far as this module uses it."""

    def show_entries(self) -> None:
        """Write index entries to their files."""
        ...


class CheckpointWriter(Protocol):
    """The offset checkpoints of a directory, as far as its logs cause that they are written."""

    def save_starts(self, then: Callable[[], None]) -> None:
        """Make the log starts durable, then call back in a later turn."""
        ...

    def checkpoint_recovery_points(self) -> None:
        """Begin to write the recovery points."""
        ...

    def settle_recovery_points(self) -> None:
        """Wait until recovery points that are being written are on the disk, blocking. Raises Failure."""
        ...

    def save_cleaned_now(self) -> None:
        """Write the cleaner's checkpoint, blocking. Raises Failure."""
        ...


class LogDirOwner(Protocol):
    """The directory that a context belongs to. It is not used before the context is complete."""

    @property
    def offsets(self) -> CheckpointWriter:
        """Its offset checkpoints."""
        ...

    def fence_logs(self) -> None:
        """Make the logs refuse appends: the directory is offline."""
        ...

    def rearm_logs(self) -> None:
        """Apply a change of `is_short` to the logs."""
        ...


class SharedContext(NamedTuple):
    """What all log directories of a broker share."""

    clock: Clock
    entropy: Entropy
    timers: Timers
    scan: HeaderScan
    workers: Workers | None
    """None: batches are unpacked in the turn that needs them, for tools and tests."""
    expiry: ProducerExpiry
    """The expiry of the producers of all logs."""
    bounds_due: dict[TopicPartition, None]
    """Partitions whose clean part may have changed since replication last compared it with other replicas'."""
    on_offline: Callable[[str], None]
    """Called with a directory's name when it goes offline."""


class LogDirContext:
    """A log directory, as its logs see it."""

    __slots__ = (
        "_full_logged_ns",
        "_on_offline",
        "_owner",
        "_unshown",
        "bounds_due",
        "changed",
        "cleaned_moved",
        "clock",
        "disk",
        "entropy",
        "expiry",
        "is_short",
        "offline",
        "points_moved",
        "renewed",
        "scan",
        "starts_changed",
        "starts_moved",
        "timers",
        "unchecked",
        "workers",
    )

    starts_changed: bool
    """Whether a log start moved since the checkpoint of log starts was written."""
    starts_moved: dict[TopicPartition, None]
    """Partitions whose log start, or the names of whose files, may have changed since the checkpoint was written."""
    cleaned_moved: dict[TopicPartition, None]
    """Partitions whose clean part may have changed since the cleaner's checkpoint was written."""
    renewed: dict[TopicPartition, None]
    """Partitions that may have been added, removed or configured since the cleaner last searched."""

    def __init__(self, disk: Disk, shared: SharedContext, owner: LogDirOwner) -> None:
        self.disk = disk
        self._owner = owner
        self.clock, self.entropy, self.timers, self.scan = shared.clock, shared.entropy, shared.timers, shared.scan
        self.workers, self.expiry, self.bounds_due = shared.workers, shared.expiry, shared.bounds_due
        self._on_offline = shared.on_offline
        self.offline: Failure | None = None
        """Why the directory is out of service; None while it is in service."""
        self.is_short = False
        """Less space is free than the reserve for the broker itself: clients' records are refused."""
        self._full_logged_ns, self.starts_changed = 0, False
        self._unshown: dict[ShowsEntries, None] = {}
        """Segments with index entries that are only in memory."""
        self.changed: dict[TopicPartition, None] = {}
        """Partitions whose high watermark may have moved since its checkpoint: others have no record above theirs."""
        self.unchecked: dict[TopicPartition, None] = {}
        """Partitions whose logs have changed since retention checked them, besides those in `changed`."""
        self.points_moved: dict[TopicPartition, None] = {}
        """Partitions whose recovery point may have moved since its checkpoint."""
        self.starts_moved, self.cleaned_moved, self.renewed = {}, {}, {}

    def on_failed(self, failure: Failure) -> None:
        """Note a failure of the disk; a failing device takes the directory offline."""
        # A full disk or a missing file (FULL, NOT_DONE) concerns one operation. Only a failing device (IO) makes
        # everything in the directory doubtful.
        if failure.kind is not Kind.IO or self.offline is not None:
            return
        self.offline = failure
        _logger.error("log directory %s is offline: %s", self.disk.name, failure)
        self._owner.fence_logs()
        self._on_offline(self.disk.name)

    def on_log_changed(self, tp: TopicPartition) -> None:
        """Note that a log was added, removed, cut or configured: checkpoints and retention visit it again."""
        self.changed[tp] = self.points_moved[tp] = None
        self.starts_moved[tp] = self.cleaned_moved[tp] = self.renewed[tp] = self.bounds_due[tp] = None

    def on_start_moved(self, tp: TopicPartition) -> None:
        """Note that a log start moved: its checkpoint has to be written, and retention visits the log."""
        self.starts_changed = True
        self.on_log_changed(tp)

    def on_log_cleaned(self, tp: TopicPartition) -> None:
        """Note that the clean part of a log changed."""
        self.cleaned_moved[tp] = self.bounds_due[tp] = None

    def set_short(self, is_short: bool) -> None:
        """Set `is_short`, and apply it to the logs."""
        self.is_short = is_short
        self._owner.rearm_logs()

    def save_starts(self, then: Callable[[], None]) -> None:
        """Make the log starts durable, then call back in a later turn."""
        self._owner.offsets.save_starts(then)

    def save_recovery_points(self) -> None:
        """Begin to write the recovery points: one of them was lowered."""
        self._owner.offsets.checkpoint_recovery_points()

    def settle_recovery_points(self) -> None:
        """Wait until recovery points that are being written are on the disk, blocking. Raises Failure."""
        self._owner.offsets.settle_recovery_points()

    def save_cleaned(self) -> None:
        """Write the cleaner's checkpoint, blocking: one of the logs was cut. Raises Failure."""
        self._owner.offsets.save_cleaned_now()

    def check_online(self) -> None:
        """Raise ApiError KAFKA_STORAGE_ERROR when the directory is offline."""
        if self.offline is not None:
            raise self.storage_error(self.offline)

    def storage_error(self, failure: Failure) -> ApiError:
        """The error for a client whose request failed because of the disk."""
        self.on_failed(failure)
        if failure.kind is Kind.FULL:
            text = f"no space left in {self.disk.name}: free some space, or lower retention"
            self._log_disk_full(text)
        else:
            text = f"log directory {self.disk.name} failed: {failure.message}"
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, text)

    def _log_disk_full(self, text: str) -> None:
        """Log one line a minute at most: every request is refused while the disk is full."""
        now = self.clock.now().mono_ns
        if now >= self._full_logged_ns:
            self._full_logged_ns = now + _FULL_TELL_NS
            _logger.error("%s; refusing clients' writes until then", text)

    def unlink_path(self, path: str) -> None:
        """Remove a file or directory off the loop; the next start finds one that was left."""
        self.disk.unlink(path, self.note_failure)

    def unlink_later(self, path: str, delay_ms: int) -> None:
        """Remove it after `delay_ms`, so that reads in progress can finish."""
        self.timers.add_timer(self.clock.now().mono_ns + delay_ms * 1_000_000, lambda: self.unlink_path(path))

    def show_entries_soon(self, segment: ShowsEntries) -> None:
        """Schedule that a segment writes its index entries to their files within a second."""
        if not self._unshown:
            self.timers.add_timer(self.clock.now().mono_ns + _SHOWN_NS, self._show_entries)
        self._unshown[segment] = None

    def _show_entries(self) -> None:
        for _ in range(min(_SHOWN_IN_TURN, len(self._unshown))):
            segment = next(iter(self._unshown))
            del self._unshown[segment]
            segment.show_entries()
        if self._unshown:
            self.timers.add_timer(self.clock.now().mono_ns + _SHOWN_PAUSE_NS, self._show_entries)

    def read_offsets(self, name: str) -> dict[TopicPartition, int]:
        """An offset checkpoint; empty when it is missing or cannot be read, which costs time, not data."""
        try:
            return parse_offsets(read_file(self.disk, name))
        except CorruptCheckpoint as error:
            _logger.warning("ignoring the checkpoint %s/%s, recovery takes longer: %s", self.disk.name, name, error)
        except Failure as failure:
            if failure.kind is not Kind.NOT_DONE:
                raise
        return {}

    def note_failure(self, outcome: object) -> None:
        """A completion without a waiting caller: only a failure matters."""
        if isinstance(outcome, Failure):
            self.on_failed(outcome)


class CompletionBarrier:
    """Waits for several completions, and remembers the first failure among them."""

    __slots__ = ("_done", "_failure", "_open")

    def __init__(self, done: Done[None]) -> None:
        self._done = done
        self._failure: Failure | None = None
        # One for `arm_barrier`: completions that come before all are expected do not end the wait.
        self._open = 1

    def add_expected(self) -> Callable[[object], None]:
        """Expect one completion more; returns its callback."""
        self._open += 1
        return self._on_completed

    def note_failure(self, failure: Failure) -> None:
        """Note a failure that has no completion of its own."""
        self._failure = self._failure or failure

    def arm_barrier(self) -> None:
        """End the expecting: call it after all `add_expected`. At least one completion comes in a later turn."""
        self._on_completed(None)

    def _on_completed(self, outcome: object) -> None:
        if isinstance(outcome, Failure):
            self.note_failure(outcome)
        self._open -= 1
        if not self._open:
            self._done(self._failure)


class CoalescingWriter:
    """A small file that is rewritten at each change: one write in flight, the newest content next."""

    __slots__ = ("_home", "_idle", "_in_flight", "_next", "_path", "_saved", "_writing", "failure")

    def __init__(self, home: LogDirContext, path: str | Callable[[], str]) -> None:
        """`path` is a function where the name of the directory may change."""
        self._home = home
        self._path = path if callable(path) else lambda: path
        self._writing = False
        self.failure: Failure | None = None
        """The failure of the last write; None when it succeeded."""
        self._in_flight = b""
        """The content that is being written; empty when newer content has been written meanwhile."""
        self._saved: bytes | None = None
        """The content of the file; None when it is not known."""
        self._next: bytes | Callable[[], bytes] | None = None
        self._idle: list[Callable[[object], None]] = []

    def let_go(self) -> None:
        """Fix the path, which cannot change any more, and drop the reference to its owner."""
        path = self._path()
        self._path = lambda: path

    def write_soon(self, data: bytes | Callable[[], bytes]) -> None:
        """Write `data` to the file soon. A function is called when the write begins, once for several calls."""
        self._next = data
        if not self._writing:
            self._start_write()

    def write_if_changed(self, data: Callable[[], bytes]) -> None:
        """Write `data` to the file soon, if the file has different content."""
        if self._writing or data() != self._saved:
            self.write_soon(data)

    def write_now(self, data: bytes) -> None:
        """Write `data` to the file now, blocking, after a write in progress. Raises Failure."""
        # A write in progress is older than `data`. Its content is forgotten, so that its completion is not taken for
        # the state of the file.
        self._next = self._saved = None
        self._in_flight = b""
        self._home.disk.replace_now(self._path(), data)
        self._saved = None if self._writing else data

    def settle_writes(self, data: Callable[[], bytes]) -> None:
        """If a write is in progress, wait for it and write the newest content, blocking. Raises Failure."""
        if self._writing:
            self.write_now(data())

    def _start_write(self) -> None:
        data, self._next = self._next, None
        assert data is not None
        self._writing = True
        # Until the write completes, the file may have the old content or the new one.
        self._saved = None
        self._in_flight = data if isinstance(data, bytes) else data()
        self._home.disk.replace_file(self._path(), self._in_flight, self._on_written)

    def _on_written(self, outcome: Failure | None) -> None:
        self._writing = False
        self.failure = outcome
        self._saved = None if isinstance(outcome, Failure) else self._in_flight or None
        self._home.note_failure(outcome)
        if self._next is not None:
            self._start_write()
            return
        # Only now, when no newer content waits: a caller may have come for that one.
        waiting, self._idle = self._idle, []
        for tell in waiting:
            tell(None)

    @property
    def is_writing(self) -> bool:
        """Whether a write is in progress."""
        return self._writing

    def when_idle(self, tell: Callable[[object], None]) -> None:
        """Call back with None once no write is in progress; only allowed while busy."""
        assert self._writing
        self._idle.append(tell)
