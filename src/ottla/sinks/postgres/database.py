"""One connection to PostgreSQL, and transactions that survive its loss.

Zone: real. A transaction is a function, which runs again after the connection was lost. That is safe even after a
COMMIT without a response, because the function first reads what is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ottla.sinks.postgres.errors import BadDatabase, DatabaseGone

T = TypeVar("T")
Cursor = psycopg.Cursor[tuple[object, ...]]
Connection = psycopg.Connection[tuple[object, ...]]

_DEFAULTS: Final = {
    "application_name": "ottla",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",  # a server that vanished is noticed within half a minute
    "target_session_attrs": "read-write",  # after a failover, the new primary among several hosts
}
_HOPELESS: Final = ("authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")
"""Texts with which a server refuses a connection for good; libpq gives no error code for them."""
_NOT_PASSING: Final = (psycopg.errors.QueryCanceled,)
"""OperationalErrors about the statement, not about the server."""
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 5.0


class Database:
    """Runs transactions on one connection, which is opened on first use, and again after it broke."""

    def __init__(self, conninfo: str, patience_s: float, idle_in_transaction_s: float) -> None:
        self._conninfo = conninfo
        self._patience_s = patience_s
        self._idle_ms = int(idle_in_transaction_s * 1000)
        self._connection: Connection | None = None

    def __getstate__(self) -> tuple[str, float, int]:
        # A connection cannot be pickled: the copy opens its own.
        return self._conninfo, self._patience_s, self._idle_ms

    def __setstate__(self, state: tuple[str, float, int]) -> None:
        self._conninfo, self._patience_s, self._idle_ms = state
        self._connection = None

    def run_transaction(self, work: Callable[[Cursor], T]) -> T:
        """Run `work` in one transaction, and return its result once that is committed.

        While the server is down, refuses connections, or aborts the transaction in favour of another one, `work` is
        run again from its beginning. Raises DatabaseGone after `patience_s`, BadDatabase, and other errors of `work`.
        """
        # 1. The server has become a standby: connect again, to find the new primary. 2. The statement was cancelled:
        # that is the caller's error. 3. A lost connection, a deadlock or a serialization failure: try again.
        deadline = time.monotonic() + self._patience_s
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                connection = self._open_connection()
                with connection.transaction(), connection.cursor() as cursor:
                    return work(cursor)
            except psycopg.errors.ReadOnlySqlTransaction as error:
                self.close()
                problem: psycopg.Error = error
            except psycopg.OperationalError as error:
                if isinstance(error, _NOT_PASSING):
                    raise
                # A deadlock or a serialization failure ends only the transaction: the connection can be used again.
                self._drop_if_broken()
                problem = error
            if time.monotonic() + wait_s > deadline:
                raise DatabaseGone(self._patience_s, _error_text(problem)) from problem
            time.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    def close(self) -> None:
        """Close the connection; the next transaction opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open_connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            try:
                # Autocommit: otherwise psycopg begins a transaction with the first statement, and its rollback would
                # undo the SET below.
                self._connection = psycopg.connect(_with_defaults(self._conninfo), autocommit=True)
            except psycopg.OperationalError as error:
                if any(each in str(error) for each in _HOPELESS):
                    raise BadDatabase(
                        f"the database refused the connection: {_error_text(error)}",
                        "Correct the connection string, or the grants",
                    ) from error
                raise
            # A process that hangs within a transaction must not lock rows for ever.
            timeout = sql.SQL("SET idle_in_transaction_session_timeout = {}").format(sql.Literal(self._idle_ms))
            self._connection.execute(timeout)
        return self._connection

    def _drop_if_broken(self) -> None:
        if self._connection is not None and (self._connection.closed or self._connection.broken):
            self.close()


def _with_defaults(conninfo: str) -> str:
    try:
        given = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        raise BadDatabase(
            "the connection string cannot be read", "Write it as postgresql://user@host:5432/database"
        ) from error
    return make_conninfo(conninfo, **{key: value for key, value in _DEFAULTS.items() if key not in given})


def _error_text(error: psycopg.Error) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
