"""What a coordinator's state machine is: it decides, applies, and never sees a log.

Zone: pure. The vocabulary between a machine (groups, transactions) and the runtime: outcomes, effects, where a record
came from. Who appends and when effects are performed is `shard_runtime`'s.

    handle(command, now) → Outcome     decides; changes nothing
    apply(entry, origin)               the only one that changes anything; live and when loading, in log order
    on_loaded(now) → Outcome           everything that was in the log is applied
    deadline() → ns | None             when on_time(now) → Outcome wants to be called

The one rule: records are appended, then applied, then the volatile events are applied on top, then effects that need
not wait are performed, and when the records are committed the others. A refused append drops the whole outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from ottla.errors import ApiError
from ottla.seams import Instant
from ottla.types import NO_OFFSET, NO_PRODUCER_EPOCH, NO_PRODUCER_ID

T = TypeVar("T")
C_contra = TypeVar("C_contra", bound="Command", contravariant=True)

Completion = Callable[["T | ApiError"], None]
"""Whoever waits for an answer; called exactly once."""
Refusal = Callable[[ApiError], None]
"""A ticket, as seen by those who only turn it away."""


class Effect(Protocol):
    """What follows from a decision, outside the machine."""

    def perform(self) -> None:
        """Do it. It must not call into the machine; whoever wants that queues a turn of its own."""
        ...

    def drop(self, error: ApiError) -> None:
        """It will not be done, because of `error`: nothing was decided, or nobody knows whether it holds."""
        ...


class AnswerEffect(NamedTuple):
    """The effect of answering somebody."""

    ticket: Callable[[object], None]
    value: object

    def perform(self) -> None:
        """Give the value."""
        self.ticket(self.value)

    def drop(self, error: ApiError) -> None:
        """Give the error."""
        self.ticket(error)


class JournalProducer(NamedTuple):
    """The transactional producer in whose name records are written; they wait for its marker."""

    producer_id: int
    epoch: int


class EntryOrigin(NamedTuple):
    """Where an entry stands in the journal; `offset` is -1 for volatile events."""

    offset: int = NO_OFFSET
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    timestamp: int = -1
    """The record's, in ms of wall time."""


VOLATILE: Final = EntryOrigin()


class TransactionEnd(NamedTuple):
    """An entry that the runtime makes of a control batch: what this producer wrote before is real, or void."""

    producer_id: int
    producer_epoch: int
    commit: bool


class Decision(NamedTuple):
    """A decision. When its append is refused, all of it is dropped, and whoever asked is told; nobody else is."""

    volatile: Sequence[object] = ()
    """Events that are not journaled; applied after the records."""
    records: Sequence[object] = ()
    """Entries of the journal: one batch."""
    now: Sequence[Effect] = ()
    """Effects that do not wait for the commit."""
    committed: Sequence[Effect] = ()
    """Effects that wait until the records, and all that was applied before, are committed. Without records: a read."""
    producer: JournalProducer | None = None


NOTHING: Final = Decision()


class Command(Protocol):
    """Something that is asked of a machine."""

    @property
    def ticket(self) -> Refusal:
        """Who is turned away when no machine can be asked."""
        ...


class Shard(Protocol[C_contra]):
    """The state machine of one partition of an internal topic."""

    def handle(self, command: C_contra, now: Instant) -> Decision:
        """Decide. Changes nothing."""
        ...

    def apply(self, entry: object, origin: EntryOrigin) -> None:
        """Take a record, a TransactionEnd or a volatile event. The only method that changes the state."""
        ...

    def on_loaded(self, now: Instant) -> Decision:
        """All records are applied; its effects wait until the end of what was loaded is committed."""
        ...

    def deadline(self) -> int | None:
        """Monotonic ns at which `on_time` wants to be called; None: never."""
        ...

    def on_time(self, now: Instant) -> Decision:
        """Do one bounded step of what is due. Changes nothing."""
        ...

    def waiting(self) -> Sequence[Refusal]:
        """All tickets that are kept in the state: turned away when the shard is lost."""
        ...


class Codec(Protocol):
    """Entries to records of the internal topic and back."""

    @property
    def newest_only(self) -> bool:
        """Whether an entry says all that is to be known of its key: of those that are loaded together the last one is
        enough."""
        ...

    def encode(self, entry: object) -> tuple[bytes, bytes | None]:
        """Key and value; no value deletes the key."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> object | None:
        """The entry; None for a record of a kind that is not known here. Raises CorruptRecord."""
        ...
