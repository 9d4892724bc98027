"""The contract of a coordinator's state machine: it decides and applies, and never accesses a log.

Zone: pure. The vocabulary between a state machine (groups, transactions) and the runtime: decisions, effects, origins
of records. `shard_runtime` appends the records and performs the effects.

    handle(command, now) → Decision    decides; changes nothing
    apply(entry, origin)               the only method that changes state; called live and when loading, in log order
    on_loaded(now) → Decision          called when everything in the log is applied
    deadline() → ns | None             when on_time(now) → Decision is to be called

The one rule has five steps:

    1. the records of a decision are appended to the journal
    2. the records are applied
    3. the volatile events are applied
    4. effects that need no commit (`now`) are performed
    5. once the records are committed, the other effects (`committed`) are performed

A refused append drops the whole decision.
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
"""The callback of a request that waits for an answer; called exactly once."""
Refusal = Callable[[ApiError], None]
"""The same callback, where the caller only ever passes an error."""


class Effect(Protocol):
    """An action outside the state machine that follows from a decision."""

    def perform_effect(self) -> None:
        """Carry the action out. It must not call into the state machine; it may queue a later turn that does."""
        ...

    def cancel_effect(self, error: ApiError) -> None:
        """The action is cancelled because of `error`: nothing was decided, or it is unknown whether it is committed."""
        ...


class AnswerEffect(NamedTuple):
    """The effect that answers a request."""

    ticket: Callable[[object], None]
    value: object

    def perform_effect(self) -> None:
        """Pass the value to the ticket."""
        self.ticket(self.value)

    def cancel_effect(self, error: ApiError) -> None:
        """Pass the error to the ticket."""
        self.ticket(error)


class JournalProducer(NamedTuple):
    """The transactional producer of records. They take effect with the marker of its transaction."""

    producer_id: int
    epoch: int


class EntryOrigin(NamedTuple):
    """The place of an entry in the journal; `offset` is -1 for volatile events."""

    offset: int = NO_OFFSET
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    timestamp: int = -1
    """The timestamp of the record, in ms of wall time."""


VOLATILE: Final = EntryOrigin()


class TransactionEnd(NamedTuple):
    """An entry that the runtime makes of a control batch: earlier records of this producer are committed or aborted."""

    producer_id: int
    producer_epoch: int
    commit: bool


class Decision(NamedTuple):
    """The result of `handle`, `on_loaded` or `on_time`.

    When its append is refused, all of it is dropped, and the ticket of the command gets the error.
    """

    volatile: Sequence[object] = ()
    """Events that are not journaled; applied after the records."""
    records: Sequence[object] = ()
    """Entries of the journal: one batch."""
    now: Sequence[Effect] = ()
    """Effects that do not wait for the commit."""
    committed: Sequence[Effect] = ()
    """Effects that wait until the records, and everything applied before them, are committed.

    A decision without records is a read: its answer waits for the commit of the state that it read."""
    producer: JournalProducer | None = None


NOTHING: Final = Decision()


class Command(Protocol):
    """A request to a state machine."""

    @property
    def ticket(self) -> Refusal:
        """The callback that gets an error when no state machine can handle the command."""
        ...


class Shard(Protocol[C_contra]):
    """The state machine of one partition of an internal topic."""

    def handle(self, command: C_contra, now: Instant) -> Decision:
        """Decide about a command. Changes nothing."""
        ...

    def apply(self, entry: object, origin: EntryOrigin) -> None:
        """Apply a record, a TransactionEnd or a volatile event. The only method that changes the state."""
        ...

    def on_loaded(self, now: Instant) -> Decision:
        """All records are applied. `committed` effects wait until the last loaded record is committed."""
        ...

    def next_deadline(self) -> int | None:
        """Monotonic ns at which `on_time` is to be called; None: never."""
        ...

    def on_time(self, now: Instant) -> Decision:
        """Decide about one bounded step of the work that is due. Changes nothing."""
        ...

    def waiting_tickets(self) -> Sequence[Refusal]:
        """All tickets that the state holds. They get an error when the shard is lost."""
        ...


class Codec(Protocol):
    """Entries to records of the internal topic and back."""

    @property
    def newest_only(self) -> bool:
        """Whether an entry holds the full state of its key, so that loading may skip older entries of the same key."""
        ...

    def encode(self, entry: object) -> tuple[bytes, bytes | None]:
        """Key and value; no value deletes the key."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> object | None:
        """The entry; None for a record of an unknown type. Raises CorruptRecord."""
        ...
