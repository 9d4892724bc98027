"""The first steps of a broker in the metadata store: the nodes that every broker makes sure of, the cluster's id, and
its own registration.

Zone: deterministic. Scripts only, each of which can be repeated: what is there already is taken as it is, because other
brokers start at the same time, and because an answer of the store may have been lost.
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
from ottla.cluster.store.workflow import Workflow, get, get_all, submit
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, Op
from ottla.types import uuid_to_text

LANE: Final = "start"
_TRIES: Final = 20
"""Races with other brokers that may be lost: each one means that somebody else has done the work."""


def damaged(broken: BrokenNode) -> ApiError:
    """Why a broker cannot start on a store with a node that means nothing."""
    return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the metadata store is damaged: {broken}")


def ensure_persistent() -> Workflow[None]:
    """Create the nodes that are missing."""
    for _ in range(_TRIES):
        present = yield from get_all(PERSISTENT)
        missing = [Op("create", path) for path, node in zip(PERSISTENT, present, strict=True) if node is None]
        if not missing or (yield from _won(missing)):
            return
    raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the nodes of the metadata store come and go; give up")


def cluster_id(
    new_id: Callable[[], bytes], remembered: str | None, adopted: Workflow[None] | None = None
) -> Workflow[str]:
    """The cluster's id; made when there is none yet. `remembered`: what this broker's log directories say.

    `adopted`: what makes an empty store theirs. Raises ApiError INCONSISTENT_CLUSTER_ID when that is another one, or
    when a store that knows no cluster is asked by a broker that has been in one: its address is likely to be wrong, and
    the broker's records would belong to nobody.
    """
    for _ in range(_TRIES):
        node = yield from get(CLUSTER_ID)
        if node is not None and node.data:
            return _checked(decode_cluster_id(CLUSTER_ID, node.data), remembered)
        if remembered is not None and adopted is None:
            _checked("none", remembered)
        yield from ensure_persistent()
        if remembered is not None and adopted is not None:
            yield from adopted
        chosen = remembered or uuid_to_text(new_id())
        content = encode_cluster_id(chosen)
        op = Op("create", CLUSTER_ID, content) if node is None else Op("put", CLUSTER_ID, content, node.version)
        if (yield from _won([op])):
            return chosen
    raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{CLUSTER_ID} comes and goes; give up")


def _checked(found: str, remembered: str | None) -> str:
    if remembered not in (None, found):
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"the log directories (meta.properties) belong to cluster {remembered}, the metadata store to {found};"
            " one of the two is not the one that was meant; ottla.adopt.logs takes logs into an embedded store",
        )
    return found


def register(
    node_id: int, content: bytes, session: int, on_gone: OnChange, former: Container[int] = ()
) -> Workflow[int | None]:
    """Create the ephemeral registration; the value is its czxid, the broker epoch.

    `former`: sessions that this process had. What they registered is replaced: the store may keep it for long, for its
    servers start to count anew when another one of them leads (KAFKA-7165).

    None: another session holds the number; `on_gone` is called when that changes.
    """
    path = broker_path(node_id)
    for _ in range(_TRIES):
        node = yield from get(path, on_gone)
        if node is None:
            yield from _won([Op("ephemeral", path, content)])
        elif node.owner == session:
            return node.czxid
        elif node.owner in former:
            yield from _won([Op("delete", path, version=node.version), Op("ephemeral", path, content)])
        else:
            return None
    return None


def _won(ops: list[Op]) -> Workflow[bool]:
    """Whether the multi was carried out; False when somebody else was faster. Raises other Failures."""
    try:
        yield from submit(LANE, ops)
    except Failure as failure:
        if failure.kind is not Kind.CONFLICT:
            raise
        return False
    return True
