"""Finds coordinators, and sends requests to them until they answer.

Zone: deterministic. A client uses a coordinator until an answer shows that the coordinator has moved.
"""

from __future__ import annotations

from typing import Final, TypeVar

from ottla.errors import ErrorCode
from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Stream
from ottla.sim.transactions.steps import RETRY_NS, Steps, pause_client, request_broker
from ottla.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.schema import Message

M = TypeVar("M", bound=Message)

GROUP: Final = 0
TRANSACTION: Final = 1
VERSIONS: Final = (1, 2, 3, 4, 6)
MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
LATER: Final = MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""The coordinator has moved, or is still loading."""


class CoordinatorFinder:
    """The coordinators that one client knows."""

    def __init__(self, client: ClusterClient, random: Stream) -> None:
        self._client = client
        self._random = random
        self._known: dict[tuple[int, str], int] = {}

    def find_coordinator(self, kind: int, key: str) -> Steps[int]:
        """The broker that coordinates a group or a transactional id."""
        known = self._known.get((kind, key))
        while known is None:
            known = yield from self._request_coordinator(kind, key)
            if known is None:
                yield from pause_client(RETRY_NS)
            else:
                self._known[kind, key] = known
        return known

    def _request_coordinator(self, kind: int, key: str) -> Steps[int | None]:
        version = self._random.choice(VERSIONS)
        request = FindCoordinatorRequest(key_type=kind)
        if version < 4:
            request.key = key
        else:
            request.coordinator_keys = [key]
        node = self._random.choice(self._client.nodes)
        answer = yield from request_broker(node, request, version, FindCoordinatorResponse)
        if answer is None:
            return None
        found = answer if version < 4 else answer.coordinators[0]
        return None if found.error_code else found.node_id

    def forget_coordinator(self, kind: int, key: str) -> None:
        """Forget a coordinator that has moved, or does not answer."""
        self._known.pop((kind, key), None)

    def send_to_coordinator(
        self, kind: int, key: str, message: Message, version: int, response: type[M]
    ) -> Steps[M | None]:
        """Send one request to the coordinator; None: no answer."""
        node = yield from self.find_coordinator(kind, key)
        answer = yield from request_broker(node, message, version, response)
        if answer is None:
            self.forget_coordinator(kind, key)
        return answer

    def wait_to_retry(self, kind: int, key: str, code: ErrorCode) -> Steps[None]:
        """Wait before a retry; find the coordinator again if it has moved."""
        if code in MOVED:
            self.forget_coordinator(kind, key)
        yield from pause_client(RETRY_NS)
