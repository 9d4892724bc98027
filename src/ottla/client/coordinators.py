"""Requests to the coordinator of a group or of a transactional id.

Zone: real. Coordinators move, so a retriable error is retried at the current coordinator until the deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError, refused_error
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.schema import Message

R = TypeVar("R", bound=Message)

_REMEMBERED: Final = 1_000
_STILL_THERE: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT})
"""Errors that pass at the same coordinator: it need not be looked up again."""


class CoordinatorKind(IntEnum):
    """What is coordinated; the numbers are the protocol's."""

    GROUP = 0
    TRANSACTION = 1

    @property
    def noun(self) -> str:
        """The noun for error messages."""
        return "group" if self is CoordinatorKind.GROUP else "transactional id"


class CoordinatorCalls:
    """Requests to the coordinators of names of one kind."""

    __slots__ = ("_cluster", "_for_coordinator", "_kind", "_known", "_remember")

    def __init__(
        self, cluster: Cluster, kind: CoordinatorKind, *, remember: bool = False, beside_fetches: bool = False
    ) -> None:
        """remember: keep the coordinators of names, and look them up only after an error.

        beside_fetches: use connections of their own, because fetches wait on the others.
        """
        self._for_coordinator = beside_fetches
        self._cluster = cluster
        self._kind = kind
        self._remember = remember
        self._known: dict[str, int] = {}

    def find_coordinator(self, name: str, deadline: Deadline | None = None) -> int:
        """The broker that coordinates a name. Raises RefusedError, DeadlineError."""
        kind = int(self._kind)

        def build(version: int) -> FindCoordinatorRequest:
            if version >= 4:
                return FindCoordinatorRequest(coordinator_keys=[name], key_type=kind)
            return FindCoordinatorRequest(key=name, key_type=kind)

        answer = self._cluster.send_request(
            ApiKey.FIND_COORDINATOR,
            build,
            FindCoordinatorResponse,
            deadline=deadline,
            for_coordinator=self._for_coordinator,
            refused=lambda answer: _coordinator_refusal(answer, f"coordinator of {self._kind.noun} {name}"),
        )
        return answer.coordinators[0].node_id if answer.coordinators else answer.node_id

    def send_to_coordinator(
        self,
        name: str,
        key: ApiKey,
        build: Callable[[int], Message],
        response: type[R],
        refused: Callable[[R], RefusedError | None],
        deadline: Deadline | None,
        at_most: int = 32_767,
        at_least: int = 0,
    ) -> R:
        """Send a request to the coordinator of a name, in a version within the limits. Raises ClientError."""
        deadline = deadline or self._cluster.deadline()
        retries = self._cluster.retries(f"request about {self._kind.noun} {name}", deadline)
        while True:
            node = self._known.get(name)
            if node is None:
                node = self.find_coordinator(name, deadline)
            try:
                if node not in self._cluster.view.nodes:
                    self._cluster.refresh((), deadline)
                connection = self._cluster.connection(node, deadline, for_coordinator=self._for_coordinator)
                version = connection.choose_version(key, at_most, at_least)
                answer = connection.wait_for_response(
                    connection.send_request(build(version), version, response), deadline
                )
                error = refused(answer)
                if error is not None:
                    raise error
                self._remember_coordinator(name, node)
                return answer
            except ClientError as error:
                # Any other error may mean that the coordinator moved: the next attempt looks it up.
                if not (isinstance(error, RefusedError) and error.code in _STILL_THERE):
                    self._known.pop(name, None)
                if not error.retriable:
                    raise
                retries.wait_backoff(error)

    def _remember_coordinator(self, name: str, node: int) -> None:
        if self._remember:
            # A bound without bookkeeping: a program with that many names looks some of them up again.
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[name] = node


def _coordinator_refusal(answer: FindCoordinatorResponse, subject: str) -> RefusedError | None:
    if answer.coordinators:
        return refused_error(answer.coordinators[0].error_code, subject, answer.coordinators[0].error_message)
    return refused_error(answer.error_code, subject, answer.error_message)
