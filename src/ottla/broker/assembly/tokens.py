"""Delegation tokens: their store, their requests, and the removal of those that have expired.

Zone: deterministic. Construction only, and the timer of the controller that removes tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.broker.assembly.foundation import Foundation
from ottla.broker.assembly.metadata import MetadataWing
from ottla.cluster.store.error_mapping import error_of_failure
from ottla.cluster.store.workflow import Workflow, contain_defects, run_workflow
from ottla.cluster.tokens.token_store import TokenStore
from ottla.errors import ApiError
from ottla.seams import Failure
from ottla.security.tokens.token_handlers import Done, TokenHandlers
from ottla.security.tokens.token_table import TokenTable
from ottla.znodes.token_nodes import TokenInfo

REMOVED_AT_ONCE: Final = 100
"""Expired tokens that are removed in one turn; each takes two requests to the metadata store."""
REMOVAL_PAUSE_MS: Final = 100


class StoredTokens:
    """Changes tokens in the metadata store. Implements `ottla.security.tokens.token_handlers.TokenWriter`."""

    def __init__(self, base: Foundation, metadata: MetadataWing, table: TokenTable, store: TokenStore) -> None:
        self._base = base
        self._metadata = metadata
        self._table = table
        self._store = store

    def create_token(self, info: TokenInfo, done: Done) -> None:
        """Store a new token."""
        self._run(lambda: self._store.create_token(info), done)

    def change_token(self, token_id: str, edit: Callable[[TokenInfo], TokenInfo | None], done: Done) -> None:
        """Replace a token by what `edit` returns; None deletes it."""
        self._run(lambda: self._store.change_token(token_id, edit), done)

    def _run(self, script: Callable[[], Workflow[TokenInfo | None]], done: Done) -> None:
        def end(outcome: TokenInfo | Failure | ApiError | None) -> None:
            done(error_of_failure(outcome) if isinstance(outcome, Failure | ApiError) else outcome)

        workflow = contain_defects("the change of a delegation token", script)
        run_workflow(self._metadata.stores.watched, workflow, end)

    def remove_expired(self) -> None:
        """Remove the tokens that have expired, if this broker is the controller; and again after the interval."""
        wait_ms = self._base.config.delegation_token_expiry_check_interval_ms
        if self._metadata.seat.controller is not None:
            now_ms = self._base.world.clock.now().wall_ms
            expired = self._table.take_expired(now_ms, REMOVED_AT_ONCE)
            for info in expired:
                self._remove(info, now_ms)
            if len(expired) == REMOVED_AT_ONCE:  # a turn for some of them, so that others are served in between
                wait_ms = min(wait_ms, REMOVAL_PAUSE_MS)
        self._base.purgatory.look_after(wait_ms, self.remove_expired)

    def _remove(self, info: TokenInfo, now_ms: int) -> None:
        def edit(present: TokenInfo) -> TokenInfo | None:
            return None if present.expires_ms < now_ms else present

        def on_removed(outcome: object) -> None:
            if isinstance(outcome, ApiError) and info.token_id in self._table.tokens:
                self._table.replace_token(self._table.tokens[info.token_id])  # the next time again

        self.change_token(info.token_id, edit, on_removed)


def add_tokens(base: Foundation, metadata: MetadataWing) -> None:
    """Register the requests about tokens."""
    table, store = base.login.tokens, metadata.tokens
    writer = None if table is None or store is None else StoredTokens(base, metadata, table, store)
    protocols = {endpoint.listener: endpoint.protocol for endpoint in base.config.endpoints}
    handlers = TokenHandlers(
        table,
        writer,
        base.config,
        protocols,
        base.login.clients.identity_of,
        base.world.clock,
        base.world.entropy,
        base.audit,
    )
    base.dispatch.add_handlers([handlers])
    if writer is not None:
        interval_ms = base.config.delegation_token_expiry_check_interval_ms
        base.purgatory.look_after(interval_ms, writer.remove_expired)
