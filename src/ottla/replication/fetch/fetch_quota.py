"""The quota of bytes that consumers fetch, as Fetch uses it.

Zone: pure. `ottla.security.quotas.request_throttles` implements it.
"""

from __future__ import annotations

from typing import Final, Protocol

from ottla.seams import Peer, Slot


class FetchQuota(Protocol):
    """The quotas of clients."""

    @property
    def is_active(self) -> bool:
        """Whether any client has a quota: otherwise nothing here is called."""
        ...

    def most_fetched(self, slot: Slot, max_bytes: int) -> int:
        """The most bytes of a response, at most `max_bytes`."""
        ...

    def admit_fetch(self, slot: Slot, size: int) -> bool:
        """Record the bytes of a response; False: it has to be an empty one instead."""
        ...

    def exempt_follower(self, peer: Peer) -> None:
        """Limit a connection no more: a broker fetches as a replica on it."""
        ...


class _NoQuota:
    """Limits nothing."""

    is_active = False

    def most_fetched(self, slot: Slot, max_bytes: int) -> int:  # noqa: ARG002
        return max_bytes

    def admit_fetch(self, slot: Slot, size: int) -> bool:  # noqa: ARG002
        return True

    def exempt_follower(self, peer: Peer) -> None:
        """Does nothing."""


NO_QUOTA: Final = _NoQuota()
