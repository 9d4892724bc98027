"""The table of delegation tokens beside many of them: what one turn does is bounded.

Zone: deterministic.
"""

from __future__ import annotations

from tests.security.still_clock import StillClock

from ottla.config.broker import BrokerConfig
from ottla.security.audit_log import AuditLog
from ottla.security.tokens.token_handlers import TokenHandlers
from ottla.security.tokens.token_table import TokenTable
from ottla.sim.entropy import Streams
from ottla.znodes.token_nodes import TokenInfo

MANY = 1_000


class Boss:
    """The context of a request whose principal may see every token."""

    class peer:  # noqa: N801  # an attribute of a context
        principal = "User:boss"

    @staticmethod
    def is_allowed(*_: object, **__: object) -> bool:
        return True


def full_table() -> TokenTable:
    table = TokenTable("key", Streams(1))
    for at in range(MANY):
        table.replace_token(TokenInfo(f"t{at}", f"User:u{at}", f"User:u{at}", (), 0, 9, 1 + at))
    return table


def test_expired_tokens_are_taken_some_at_a_time() -> None:
    table = full_table()
    taken = [len(table.take_expired(501, 200)) for _ in range(4)]
    assert taken == [200, 200, 100, 0]


def test_tokens_of_one_owner_are_searched_in_pieces() -> None:
    table, clock = full_table(), StillClock()
    handlers = TokenHandlers(table, None, BrokerConfig(), {}, lambda _: None, clock, Streams(1), AuditLog(clock))
    pieces = list(handlers._describe_pieces(Boss, {"User:u7", "User:u950"}))  # type: ignore[arg-type]
    assert len(pieces) == 5
    assert [row.token_id for piece in pieces for row in piece.tokens] == ["t7", "t950"]
