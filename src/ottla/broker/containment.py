"""What becomes of a request on which this broker's own code fails: it costs that request, or its connection.

Zone: deterministic. `ottla.outcome.Turn` says which failures stop the broker instead. A client may repeat a request
that fails, so lines about it are bounded by counting: the first, second, fourth, eighth … of an API at a place is
logged, and all are counted.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.seams import Network, Peer
from ottla.wire.apis import API_TABLE

_log = logging.getLogger(__name__)
_PLACES_MAX: Final = 1000
"""Places of failures that are counted one by one; the program has more lines, but not that fail."""


class Containment:
    """Counts and reports failures that were contained."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.counts: dict[int, int] = {}
        """Contained failures by API key; -1: of frames too short to tell."""
        self._places: dict[tuple[int, str], int] = {}

    def note(self, peer: Peer, api_key: int, version: int, error: Exception) -> None:
        """Count a failure, and log it unless it was logged often."""
        self.counts[api_key] = self.counts.get(api_key, 0) + 1
        place = _place_of(error)
        times = self._places.get((api_key, place), 0) + 1
        if times > 1 or len(self._places) < _PLACES_MAX:
            self._places[api_key, place] = times
        if times & (times - 1) == 0:
            _log.error(
                "%s: %s v%d failed for the %s time at %s: %.200r; nothing was changed, the broker continues",
                peer.host, name_of(api_key), version, _ordinal(times), place, error,
                exc_info=error if times == 1 and not isinstance(error, MemoryError) else None,
            )  # fmt: skip

    def close_connection(self, peer: Peer, api_key: int, version: int, error: Exception) -> None:
        """Count the failure, and close the connection: there is no answer that could tell of it."""
        self.note(peer, api_key, version, error)
        text = f"{name_of(api_key)} v{version} failed in the broker: {type(error).__name__} at {_place_of(error)}"
        self._network.close(peer, text)


def internal_error() -> ApiError:
    """What a client is told; the reason is in the broker's log."""
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed on this request; its log says why")


def name_of(api_key: int) -> str:
    """Kafka's name of an API."""
    api = API_TABLE.get(api_key)
    return "no API of Kafka" if api is None else api.name


def _place_of(error: Exception) -> str:
    """File and line in which the error was raised."""
    frames = deque(traceback.walk_tb(error.__traceback__), maxlen=1)
    return "nowhere" if not frames else f"{frames[0][0].f_code.co_filename.rpartition('/')[2]}:{frames[0][1]}"


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second"}.get(number, f"{number:,}th")
