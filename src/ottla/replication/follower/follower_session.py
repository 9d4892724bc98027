"""The follower's half of an incremental fetch session (KIP-227): requests contain only what the leader does not know.

Zone: pure. A state machine of two tables (wanted partitions, partitions that the leader knows) and an epoch; it
returns the next request. It does not send, wait, or use logs.

    full request (epoch 0) → response with a session id → incremental requests (epoch 1, 2, …) with changes only
    a response without a session, an error, or no response → full request, which closes the old session
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.wire.hot_fetch import Forgotten, Wanted

INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1
_NO_SESSION: Final = 0

Key = tuple[str | bytes, int]
"""(topic name, or topic id from v13; partition)"""
SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""Errors that only end the session: the follower begins a new one at once."""


class Ask(NamedTuple):
    """The contents of the next request."""

    session_id: int
    epoch: int
    wanted: list[Wanted]
    forgotten: list[Forgotten]


class FollowerSession:
    """One follower's session with one leader."""

    __slots__ = ("_changed", "_forgotten", "_in_session", "_wanted", "epoch", "session_id")

    def __init__(self) -> None:
        self.session_id = _NO_SESSION
        self.epoch = INITIAL_EPOCH
        """The session epoch of the next request."""
        self._wanted: dict[Key, Wanted] = {}
        self._changed: dict[Key, None] = {}
        """Wanted partitions whose present row the leader does not know."""
        self._in_session: dict[Key, None] = {}
        """Partitions that the leader has in its session."""
        self._forgotten: dict[Key, None] = {}
        """Partitions in the leader's session that are not wanted any more."""

    def __len__(self) -> int:
        return len(self._wanted)

    def add_partition(self, row: Wanted) -> None:
        """Fetch a partition, or fetch it from another position than before."""
        key = row[:2]
        if self._wanted.get(key) != row:
            self._wanted[key] = row
            self._changed[key] = None
            self._forgotten.pop(key, None)

    def drop_partition(self, key: Key) -> None:
        """Do not fetch a partition (for now); does nothing if it was not wanted."""
        if self._wanted.pop(key, None) is not None:
            self._changed.pop(key, None)
            if key in self._in_session:
                self._forgotten[key] = None

    def leader_knows(self, key: Key) -> bool:
        """Whether the leader knows the present row of a partition, so that its response applies to that."""
        # A partition that is not wanted now is in the session until the next request. A response to the request in
        # flight is about its earlier row, perhaps of an earlier leader epoch.
        return key in self._wanted and key in self._in_session and key not in self._changed

    def next_request(self) -> Ask:
        """The next request. The caller has to call `on_response` or `on_lost` next."""
        # A full request names all partitions, and the leader's new session has no others. An incremental one names the
        # changed ones, and those to remove.
        if self.epoch == INITIAL_EPOCH:
            ask = Ask(self.session_id, INITIAL_EPOCH, list(self._wanted.values()), [])
            self._in_session = dict.fromkeys(self._wanted)
        else:
            wanted = self._wanted
            ask = Ask(self.session_id, self.epoch, [wanted[key] for key in self._changed], list(self._forgotten))
            self._in_session.update(self._changed)
            for key in self._forgotten:
                del self._in_session[key]
        self._changed.clear()
        self._forgotten.clear()
        return ask

    def on_response(self, error: int, session_id: int) -> None:
        """Take the response to the last request: its top-level error, and its session id."""
        # 1. The leader keeps no session. 2. It keeps a new one. 3. It names another one: out of step. 4. Next epoch.
        if error or session_id == _NO_SESSION:
            self.on_lost()
        elif self.epoch == INITIAL_EPOCH:
            self.session_id, self.epoch = session_id, 1
        elif session_id != self.session_id:
            self.on_lost()
        else:
            # After the largest epoch comes 1, as in Kafka: 0 would begin a new session.
            self.epoch = self.epoch + 1 if self.epoch < _EPOCH_MAX else 1

    def on_lost(self) -> None:
        """Begin again after no response or one of another session: the next request is full, and names the old session
        so that the leader closes it."""
        self.epoch = INITIAL_EPOCH
