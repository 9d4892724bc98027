"""The open connections of one client, by address, and the backoff of addresses after failures.

Zone: real. Opens, reuses and closes connections; `cluster` chooses the broker. One thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable

from ottla.client.backoff import backoff_ms
from ottla.client.connections.address import Address
from ottla.client.connections.connection import Connection
from ottla.client.errors import ClientError, UnreachableError
from ottla.client.retry import Deadline
from ottla.client.settings import ClientConfig

_Place = tuple[str, int]


class Pool:
    """At most one connection per host and port."""

    __slots__ = ("_config", "_failures", "_open")

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._open: dict[_Place, Connection] = {}
        self._failures: dict[_Place, tuple[int, float]] = {}
        """(consecutive failures, monotonic time of the next attempt) per place."""

    def get_connection(self, address: Address, deadline: Deadline) -> Connection:
        """An open connection; waits until the backoff of failures ends. Raises what `Connection.open_connection`
        raises."""
        place = (address.host, address.port)
        if (connection := self._usable_connection(place)) is not None:
            return connection
        self._wait_for_backoff(address, deadline)
        connection = Connection(address, self._config)
        try:
            connection.open_connection(deadline)
        except ClientError:
            connection.close_connection()
            self._note_failure(place)
            raise
        # An interrupt is no failure of the broker, so its address gets no backoff.
        except BaseException:
            connection.close_connection()
            raise
        self._failures.pop(place, None)
        self._open[place] = connection
        return connection

    def get_any_connection(self, addresses: Iterable[Address], deadline: Deadline) -> Connection:
        """A connection to one of `addresses`: an open connection, else the first that can be opened.

        Raises UnreachableError with the causes of all, or the error itself if it is the only one.
        """
        candidates = list({(a.host, a.port): a for a in addresses}.values())
        for address in candidates:
            if (connection := self._usable_connection((address.host, address.port))) is not None:
                return connection
        errors: list[ClientError] = []
        # Addresses without a failure first, so that a dead broker does not delay the call.
        for address in sorted(candidates, key=lambda a: self._retry_time((a.host, a.port))):
            try:
                return self.get_connection(address, deadline)
            except ClientError as error:
                errors.append(error)
        # An error that is not retriable is about the client's settings, so the other addresses would not help.
        if len(errors) == 1 or not errors[-1].retriable:
            raise errors[-1]
        causes = "; ".join(dict.fromkeys(error.cause for error in errors))
        raise UnreachableError(f"none of {len(errors)} brokers can be used: {causes}", errors[-1].next_step)

    def keep_only(self, addresses: Collection[Address]) -> None:
        """Close connections to other addresses, and forget their failures."""
        places = {(address.host, address.port) for address in addresses}
        for place in [place for place in self._open if place not in places]:
            self._open.pop(place).close_connection()
        # Brokers that left the cluster must not keep their backoff if they return with the same address.
        self._failures = {place: failed for place, failed in self._failures.items() if place in places}

    def close_connections(self) -> None:
        """Close all connections."""
        for connection in self._open.values():
            connection.close_connection()
        self._open.clear()

    def _usable_connection(self, place: _Place) -> Connection | None:
        """The open connection to `place`, unless it ended while it was idle."""
        connection = self._open.get(place)
        if connection is None:
            return None
        if connection.went_stale():
            connection.close_connection()
        if not connection.is_open:
            del self._open[place]
            return None
        return connection

    def _retry_time(self, place: _Place) -> float:
        return self._failures.get(place, (0, 0.0))[1]

    def _wait_for_backoff(self, address: Address, deadline: Deadline) -> None:
        pause = self._retry_time((address.host, address.port)) - time.monotonic()
        if pause > deadline.remaining_s():
            raise UnreachableError(f"no time left to try {address} again")
        if pause > 0:
            time.sleep(pause)

    def _note_failure(self, place: _Place) -> None:
        count = self._failures.get(place, (0, 0.0))[0]
        first, most = self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms
        # With jitter, so that the clients of a broker that restarts do not all come back at the same moment.
        pause = backoff_ms(first, most, count, random.random()) / 1000
        self._failures[place] = (count + 1, time.monotonic() + pause)
