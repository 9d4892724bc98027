"""The client side of an incremental fetch session (KIP-227): requests leave out what the broker knows already.

Zone: pure. The input is the wanted partitions, the output is the next request; this module sends nothing.

    full request (epoch 0) → answer with a session id → incremental requests (epoch 1, 2, …) with changes only
    an answer without a session, an error, or no answer → full request, which closes the old session
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.types import TopicPartition

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
WITHOUT_EPOCH: Final = -1
"""The epoch of a full request that does not ask for a session."""
_EPOCH_MAX: Final = 2**31 - 1
SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Errors that only mean that the session is over: a full request follows at once."""


class Row(NamedTuple):
    """The state of a partition in a session."""

    topic_id: bytes
    offset: int
    leader_epoch: int


class FetchSessionRequest(NamedTuple):
    """The part of a fetch request about the session and its partitions."""

    session_id: int
    epoch: int
    rows: Mapping[TopicPartition, Row]
    """In a full request all wanted partitions, in an incremental one those that are new or have changed."""
    forgotten: Mapping[TopicPartition, Row]
    """Partitions that are not wanted any more."""

    @property
    def is_incremental(self) -> bool:
        """Whether it contains only the changes since the last request."""
        return self.epoch > FULL_EPOCH


class FetchSession:
    """The session of one reader with one broker. At most one request is unanswered: call `next_request`, then
    `on_response` or `on_lost`."""

    __slots__ = ("_by_id", "_sent_rows", "epoch", "session_id")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        """The epoch of the next request."""
        self._sent_rows: dict[TopicPartition, Row] = {}
        """The broker's state of the session after it has answered the last request."""
        self._by_id = False

    def next_request(self, wanted: Mapping[TopicPartition, Row], *, by_id: bool) -> FetchSessionRequest:
        """The next request. by_id: it identifies topics by id (version 13 on); a change of this needs a new session."""
        # A full request is needed 1. without a session, 2. when topics are identified in another way than in the
        # session, 3. when a topic was deleted and created again, because the session has the old one.
        told = self._sent_rows
        replaced = any(tp in told and told[tp].topic_id != row.topic_id for tp, row in wanted.items())
        if self.epoch == FULL_EPOCH or by_id != self._by_id or replaced:
            self.epoch, self._by_id, self._sent_rows = FULL_EPOCH, by_id, dict(wanted)
            return FetchSessionRequest(self.session_id, FULL_EPOCH, wanted, {})
        # The broker remembers offsets as well: a partition that got no records is not named again (KIP-227).
        changed = {tp: row for tp, row in wanted.items() if told.get(tp) != row}
        forgotten = {tp: row for tp, row in told.items() if tp not in wanted}
        self._sent_rows = dict(wanted)
        return FetchSessionRequest(self.session_id, self.epoch, changed, forgotten)

    def on_response(self, error: int, session_id: int, seen: Collection[TopicPartition]) -> None:
        """The answer to the last request: its top-level error, its session id, the partitions in it."""
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id, self.epoch = NO_SESSION, FULL_EPOCH  # no session is left to close
        elif error or session_id == NO_SESSION:
            self.epoch = FULL_EPOCH
        elif self.epoch == FULL_EPOCH:
            self.session_id = session_id
            # A full answer contains all requested partitions. If it does not, the state of the session is unknown.
            self.epoch = 1 if all(tp in seen for tp in self._sent_rows) else FULL_EPOCH
        elif session_id != self.session_id:
            self.epoch = FULL_EPOCH
        else:
            # After the largest epoch comes 1: 0 would ask for a new session (KIP-227).
            self.epoch = self.epoch + 1 if self.epoch < _EPOCH_MAX else 1

    def on_lost(self) -> None:
        """No answer, or a malformed one: the next request is a full one, which closes the session."""
        self.epoch = FULL_EPOCH
