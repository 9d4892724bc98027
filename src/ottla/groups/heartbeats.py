"""Heartbeat: a fast path for the most frequent request of a coordinator.

Zone: deterministic. A member sends the same bytes again and again, so decoded requests are cached by their bytes, and
encoded responses by their error code. A valid heartbeat only moves a deadline, which is decided and applied at once
(`ShardRuntime.apply_event`); any other heartbeat is submitted as a command.

API 12. Versions 0-4. 1 throttle time, 3 static members, 4 flexible.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.groups.commands import Heartbeat
from ottla.groups.groups import Groups
from ottla.groups.membership import member_code
from ottla.requests import Declaration, RightsOf
from ottla.seams import Gate, Network, Slot
from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import response_header
from ottla.wire.messages import HeartbeatRequest, HeartbeatResponse

DECLARATION: Final = Declaration(ApiKey.HEARTBEAT, 0, 4, resource="Group", operation="Read")
_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_REMEMBERED: Final = 20_000
"""The most decoded requests in the cache."""
_LONGEST: Final = 512
"""The most bytes of a request in the cache."""
_correlation: Final = Struct(">i").pack

Beat = tuple[str, int, str, "str | None"]
"""(group id, generation, member id, instance id)."""


class Heartbeats:
    """Handles Heartbeat requests."""

    def __init__(self, groups: Groups, network: Network, rights_of: RightsOf | None = None) -> None:
        """`rights_of`: what a connection may do; None: there is no authorizer."""
        self._groups = groups
        self._rights_of = rights_of
        self._network = network
        self._meanings: dict[tuple[int, bytes], Beat] = {}
        """Decoded requests, by version and body."""
        self._endings: dict[tuple[int, ErrorCode], bytes] = {}
        """The bytes of a response after its correlation id, by version and error code."""

    def on_request(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        """Answer at once. While the group is loading every heartbeat succeeds, because clients expect no such error.

        Raises MalformedMessage.
        """
        key = version, bytes(frame[pos:])
        known = self._meanings.get(key)
        beat = known or _decode_request(version, frame, pos)
        # Decided for cached requests as well: another connection may send the same bytes, and ACLs change.
        if self._rights_of is not None and self._is_denied(self._rights_of, slot, beat[0]):
            self._network.send_reply(slot, [_correlation(correlation_id) + self._response_ending(version, _DENIED)])
            return Gate.NEXT
        code = self._groups.try_heartbeat(*beat)
        if code is None:
            self._submit_heartbeat(slot, version, correlation_id, beat)
            return Gate.NEXT
        # Only requests of members are cached, so that strangers cannot fill the cache.
        if known is None and len(key[1]) <= _LONGEST:
            self._cache_request(key, beat)
        ending = self._endings.get((version, code)) or self._response_ending(version, code)
        self._network.send_reply(slot, [_correlation(correlation_id) + ending])
        return Gate.NEXT

    @staticmethod
    def _is_denied(rights_of: RightsOf, slot: Slot, group_id: str) -> bool:
        rights = rights_of(slot.peer)
        if rights is None or rights.is_allowed(Operation.READ, ResourceType.GROUP, group_id):
            return False
        rights.log_denial(ApiKey.HEARTBEAT, Operation.READ, ResourceType.GROUP, group_id)
        return True

    def _cache_request(self, key: tuple[int, bytes], beat: Beat) -> None:
        """Cache the decoded request of a member."""
        if len(self._meanings) >= _REMEMBERED:
            self._meanings.clear()
        self._meanings[key] = beat

    def _submit_heartbeat(self, slot: Slot, version: int, correlation_id: int, beat: Beat) -> None:
        """Submit the heartbeat as a command, and answer when the shard has decided."""

        def send_response(outcome: ErrorCode | ApiError) -> None:
            code = outcome.code if isinstance(outcome, ApiError) else outcome
            self._network.send_reply(slot, [_correlation(correlation_id) + self._response_ending(version, code)])

        self._groups.submit_command(Heartbeat(send_response, *beat))

    def _response_ending(self, version: int, code: ErrorCode) -> bytes:
        found = self._endings.get((version, code))
        if found is None:
            told = ErrorCode.NONE if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else member_code(code)
            head = response_header(ApiKey.HEARTBEAT, version, 0)[4:]
            found = self._endings[version, code] = head + encode_bytes(HeartbeatResponse(error_code=told), version)
        return found


def _decode_request(version: int, frame: memoryview, pos: int) -> Beat:
    request, _ = decode(HeartbeatRequest, version, frame, pos)
    return request.group_id, request.generation_id, request.member_id, request.group_instance_id
