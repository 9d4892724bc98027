"""Keeps the table of delegation tokens equal to the metadata store, and changes it there.

Zone: deterministic. `znodes.token_nodes` has the layout, which is that of Apache Kafka 3.9. All tokens are read in each
new session; then the notifications name those that have changed. A node that cannot be read is no token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from ottla.cluster.store.full_reads import FullReads
from ottla.cluster.store.notification_feed import NODES_AT_ONCE, NotificationFeed
from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.store.workflow import Workflow, read_children, read_node, read_nodes, submit_multi
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Clock, Failure, Kind, Node, Op
from ottla.security.tokens.token_table import TokenTable
from ottla.znodes.token_nodes import (
    PERSISTENT_TOKEN_PATHS,
    TOKEN_CHANGE,
    TOKEN_CHANGES,
    TOKENS,
    TokenInfo,
    decode_token,
    encode_token,
    token_path,
)

logger = logging.getLogger(__name__)

_TRIES: Final = 10
TokenEdit = Callable[[TokenInfo], TokenInfo | None]
"""Computes the new state of a token from the present one; None deletes it. Raises ApiError."""


class TokenStore:
    """The delegation tokens as the metadata store has them."""

    def __init__(self, store: WatchedStore, table: TokenTable, clock: Clock, purgatory: Purgatory) -> None:
        self._table = table
        self._reads = FullReads[str]()
        self._feed = NotificationFeed(store, clock, purgatory, TOKEN_CHANGES, self._apply_notifications)

    def read_all(self) -> Workflow[None]:
        """Read all tokens, and begin to watch. Raises Failure."""
        yield from _ensure_parents()
        yield from self._feed.start_watching()
        yield from self._read_tokens()

    def _read_tokens(self) -> Workflow[None]:
        with self._reads.track_changes() as newer:
            names = yield from read_children(TOKENS)
            yield from self._reload_tokens(names)
            # One that was created after the names were read is not among them, but among the newer ones.
            for token_id in self._table.tokens.keys() - set(names) - newer:
                self._table.remove_token(token_id)

    def _reload_tokens(self, token_ids: Sequence[str]) -> Workflow[None]:
        for begin in range(0, len(token_ids), NODES_AT_ONCE):
            some = token_ids[begin : begin + NODES_AT_ONCE]
            nodes = yield from read_nodes([token_path(each) for each in some])
            for token_id, node in zip(some, nodes, strict=True):
                self._apply_node(token_id, node)

    def _apply_node(self, token_id: str, node: Node | None) -> None:
        try:
            info = None if node is None else decode_token(token_id, node.data)
        except ValueError as error:
            logger.error("no login with the delegation token %.100r, which cannot be read: %s", token_id, error)
            info = None
        self._set_token(token_id, info)

    def _set_token(self, token_id: str, info: TokenInfo | None) -> None:
        self._reads.note_set(token_id)
        if info is None:
            self._table.remove_token(token_id)
        else:
            self._table.replace_token(info)

    def _apply_notifications(self, _paths: Sequence[str], nodes: Sequence[Node | None]) -> Workflow[None]:
        # One that was removed before it was read may have named any token.
        if None in nodes:
            yield from self._read_tokens()
            return
        named = (node.data.decode(errors="replace") for node in nodes if node is not None)
        yield from self._reload_tokens([each for each in dict.fromkeys(named) if _names_token(each)])

    # -- changes -----------------------------------------------------------------------------------------------------

    def create_token(self, info: TokenInfo) -> Workflow[None]:
        """Store a new token. Raises Failure."""
        yield from _submit_change(info.token_id, Op("create", token_path(info.token_id), encode_token(info)))
        self._set_token(info.token_id, info)

    def change_token(self, token_id: str, edit: TokenEdit) -> Workflow[TokenInfo | None]:
        """Change or delete a token. Returns its new state.

        Raises Failure; ApiError of the edit, DELEGATION_TOKEN_NOT_FOUND, or REQUEST_TIMED_OUT when other brokers keep
        changing it.
        """
        path = token_path(token_id)
        for _ in range(_TRIES):
            node = yield from read_node(path)
            # Into the table first, which may lag: the edit decides by what the store has.
            self._apply_node(token_id, node)
            present = self._table.tokens.get(token_id)
            if node is None or present is None:
                raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "Delegation Token is not found on server.")
            after = edit(present)
            op = (
                Op("delete", path, version=node.version)
                if after is None
                else Op("put", path, encode_token(after), node.version)
            )
            try:
                yield from _submit_change(token_id, op)
            except Failure as failure:
                if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN):
                    raise
                continue
            self._set_token(token_id, after)
            return after
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "other brokers keep changing the delegation token; try again")


def _submit_change(token_id: str, op: Op) -> Workflow[None]:
    yield from submit_multi(f"token {token_id}", [op, Op("sequential", TOKEN_CHANGE, token_id.encode())])


def _names_token(token_id: str) -> bool:
    # Anything else is refused by the client of ZooKeeper, and the notification would be read again and again.
    return token_id not in ("", ".", "..") and "/" not in token_id and token_id.isprintable()


def _ensure_parents() -> Workflow[None]:
    """Create the nodes that are missing. Another broker may do so at the same time."""
    for _ in range(_TRIES):
        present = yield from read_nodes(PERSISTENT_TOKEN_PATHS)
        found = zip(PERSISTENT_TOKEN_PATHS, present, strict=True)
        missing = [Op("create", path) for path, node in found if node is None]
        if not missing:
            return
        try:
            yield from submit_multi("delegation tokens", missing)
        except Failure as failure:
            if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN):
                raise
    raise Failure(Kind.CONFLICT, "the nodes of delegation tokens are still missing")
