"""The first steps of a broker in the metadata store: the persistent nodes, the cluster's id, its own registration.

Zone: deterministic. Workflows only, each of which can be repeated: nodes that exist are kept, because other brokers
start at the same time, and because a response of the store may have been lost.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from ottla.cluster.store.layout import (
    CLUSTER_ID,
    PERSISTENT,
    BrokenNode,
    broker_path,
    decode_cluster_id,
    encode_cluster_id,
)
from ottla.cluster.store.watches import OnChange
from ottla.cluster.store.workflow import Workflow, read_node, read_nodes, submit_multi
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, Op
from ottla.types import uuid_to_text

LANE: Final = "start"
_TRIES: Final = 20
"""Attempts of a step. Each failed one is a lost race: another broker has done the same work."""


def damaged_store_error(broken: BrokenNode) -> ApiError:
    """The error for a broker that cannot start because a node of the store cannot be decoded."""
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the metadata store is damaged: {broken}")


def ensure_persistent() -> Workflow[None]:
    """Create the nodes that are missing."""
    for _ in range(_TRIES):
        present = yield from read_nodes(PERSISTENT)
        missing = [Op("create", path) for path, node in zip(PERSISTENT, present, strict=True) if node is None]
        if not missing or (yield from _submit_if_first(missing)):
            return
    raise ApiError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"the persistent nodes of the metadata store are still missing after {_TRIES} tries",
    )


def find_cluster_id(
    new_id: Callable[[], bytes], remembered: str | None, adopted: Workflow[None] | None = None
) -> Workflow[str]:
    """The cluster's id. `remembered`: the id in this broker's log directories; `adopted`: imports their logs.

    1. The store has an id: it must be the remembered one.
    2. The store is empty, the broker was in a cluster, and nothing imports its logs: the address of the store is
       likely to be wrong, and starting would abandon the records.
    3. The store is empty: create its nodes, import the logs if that was requested, and write the remembered id or a
       new one.

    Raises ApiError INCONSISTENT_CLUSTER_ID in cases 1 and 2.
    """
    for _ in range(_TRIES):
        node = yield from read_node(CLUSTER_ID)
        if node is not None and node.data:
            return _check_cluster_id(decode_cluster_id(CLUSTER_ID, node.data), remembered)
        if remembered is not None and adopted is None:
            _check_cluster_id("none", remembered)
        yield from ensure_persistent()
        if remembered is not None and adopted is not None:
            yield from adopted
        chosen = remembered or uuid_to_text(new_id())
        content = encode_cluster_id(chosen)
        op = Op("create", CLUSTER_ID, content) if node is None else Op("put", CLUSTER_ID, content, node.version)
        if (yield from _submit_if_first([op])):
            return chosen
    raise ApiError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"{CLUSTER_ID} could not be written in {_TRIES} tries: other brokers keep changing it",
    )


def _check_cluster_id(found: str, remembered: str | None) -> str:
    if remembered not in (None, found):
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"the log directories (meta.properties) belong to cluster {remembered}, the metadata store to {found};"
            " one of the two is not the one that was meant; ottla.adopt.logs takes logs into an embedded store",
        )
    return found


def register_broker(
    node_id: int, content: bytes, session: int, on_gone: OnChange, former: Container[int] = ()
) -> Workflow[int | None]:
    """Create the ephemeral registration. Returns its czxid, which is the broker epoch.

    `former`: earlier sessions of this process, whose registration is replaced. The store may keep it for long, because
    its servers restart all session time-outs when their leader changes (KAFKA-7165).

    None: another session has registered this number; `on_gone` is called when that changes.
    """
    path = broker_path(node_id)
    for _ in range(_TRIES):
        # 1. The number is free: create the node. 2. This session has created it, and the response was lost.
        # 3. An earlier session of this process has: replace it in one multi, so that no other broker takes the number.
        # 4. Another process has.
        node = yield from read_node(path, on_gone)
        if node is None:
            yield from _submit_if_first([Op("ephemeral", path, content)])
        elif node.owner == session:
            return node.czxid
        elif node.owner in former:
            yield from _submit_if_first([Op("delete", path, version=node.version), Op("ephemeral", path, content)])
        else:
            return None
    return None


def _submit_if_first(ops: list[Op]) -> Workflow[bool]:
    """Submit a multi. Returns False on a conflict: another broker was faster. Raises other Failures."""
    try:
        yield from submit_multi(LANE, ops)
    except Failure as failure:
        if failure.kind is not Kind.CONFLICT:
            raise
        return False
    return True
