"""The reader's half of an incremental fetch session (KIP-227): what a broker knows already is not said again.

Zone: pure. What is wanted goes in, the next request comes out; nothing here sends, or knows a record.

    full request (epoch 0) → answer with a session id → incremental requests (epoch 1, 2, …) with changes only
    an answer without a session, a refused one, or none at all → full request, which closes the old session
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.types import TopicPartition

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
WITHOUT_EPOCH: Final = -1
"""Of a full request that wants no session."""
_EPOCH_MAX: Final = 2**31 - 1
SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""The session is over, and nothing else is wrong: a full request comes next, at once."""


class Row(NamedTuple):
    """What a session holds of a partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int


class FetchSessionRequest(NamedTuple):
    """What a request says of partitions."""

    session_id: int
    epoch: int
    rows: Mapping[TopicPartition, Row]
    """Of a full request all that are wanted, of an incremental one those that are new or have changed."""
    forgotten: Mapping[TopicPartition, Row]
    """Those that are wanted no more."""

    @property
    def is_incremental(self) -> bool:
        """Whether it stands on what was said before."""
        return self.epoch > FULL_EPOCH


class FetchSession:
    """One reader's session with one broker. At most one request is on its way: `next_request`, then `on_response` or
    `on_lost`."""

    __slots__ = ("_by_id", "_told", "epoch", "session_id")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        """Of the next request."""
        self._told: dict[TopicPartition, Row] = {}
        """What the broker holds, once it has answered."""
        self._by_id = False

    def next_request(self, wanted: Mapping[TopicPartition, Row], *, by_id: bool) -> FetchSessionRequest:
        """The next request. by_id: it names topics by their ids (version 13 on), which a session does or does not."""
        told = self._told
        replaced = any(tp in told and told[tp].topic_id != row.topic_id for tp, row in wanted.items())
        if self.epoch == FULL_EPOCH or by_id != self._by_id or replaced:
            self.epoch, self._by_id, self._told = FULL_EPOCH, by_id, dict(wanted)
            return FetchSessionRequest(self.session_id, FULL_EPOCH, wanted, {})
        changed = {tp: row for tp, row in wanted.items() if told.get(tp) != row}
        forgotten = {tp: row for tp, row in told.items() if tp not in wanted}
        self._told = dict(wanted)
        return FetchSessionRequest(self.session_id, self.epoch, changed, forgotten)

    def on_response(self, error: int, session_id: int, seen: Collection[TopicPartition]) -> None:
        """The answer to the last request: its top-level error, its session id, the partitions in it."""
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id, self.epoch = NO_SESSION, FULL_EPOCH  # there is nothing to close
        elif error or session_id == NO_SESSION:
            self.epoch = FULL_EPOCH
        elif self.epoch == FULL_EPOCH:
            self.session_id = session_id
            # A full answer is about everything that was asked for; of another one nobody knows what the session holds.
            self.epoch = 1 if all(tp in seen for tp in self._told) else FULL_EPOCH
        elif session_id != self.session_id:
            self.epoch = FULL_EPOCH
        else:
            self.epoch = self.epoch + 1 if self.epoch < _EPOCH_MAX else 1

    def on_lost(self) -> None:
        """No answer, or one that cannot be read: the next request is a full one, and closes what there may be."""
        self.epoch = FULL_EPOCH
