"""FindCoordinator (key 10): which broker coordinates a group or a transactional id.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int8, int16, int32, nullable_string, string


class FindCoordinatorRequest(Message, api_key=10, versions="0-6", flexible="3+"):
    """The name to look up.

    v1: type, 0 group, 1 transactional id, 2 share partition (KIP-932, v6). v4: several names at once (KIP-699).
    """

    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array("4+", "string")


class FindCoordinatorResponse(Message, api_key=10, versions="0-6", flexible="3+"):
    """Where each coordinator is."""

    class Coordinator(Struct):
        key: str = string("4+")
        node_id: int = int32("4+")
        host: str = string("4+")
        port: int = int32("4+")
        error_code: int = int16("4+")
        error_message: str | None = nullable_string("4+", "4+", "")

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0-3")
    error_message: str | None = nullable_string("1-3", "1-3", "")
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array("4+")
