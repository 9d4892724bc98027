"""Moves of replicas between the log directories of a broker: their states, and how they are started (KIP-113).

Zone: real.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import LogDir, Replica
from ottla.client.errors import ClientError, RefusedError
from ottla.errors import ErrorCode
from ottla.kafka_tools.options import ToolError
from ottla.kafka_tools.tools.reassignment.plan_files import FAILED
from ottla.types import TopicPartition

_PAUSE_S: Final = 0.1


class Place(NamedTuple):
    """The log directory of a replica, and the one that it is being copied to; "" for none."""

    present: str
    future: str


def find_places(admin: Admin, replicas: Mapping[Replica, object]) -> dict[Replica, Place]:
    """The log directories of replicas, of brokers that answer."""
    nodes = sorted({replica.node_id for replica in replicas})
    # A broker that is not alive would be waited for until the deadline.
    live = {node.node_id for node in admin.describe_cluster().nodes} if nodes else set()
    partitions = list(dict.fromkeys(replica.tp for replica in replicas))
    found = admin.describe_log_dirs(partitions, nodes=[node for node in nodes if node in live]) if nodes else {}
    places = {replica: Place("", "") for replica in replicas if isinstance(found.get(replica.node_id), list)}
    for node, dirs in found.items():
        for each in dirs if isinstance(dirs, list) else ():
            if isinstance(each, LogDir):
                _add_places(places, node, each)
    return {replica: place for replica, place in places.items() if replica in replicas}


def _add_places(places: dict[Replica, Place], node: int, found: LogDir) -> None:
    for held in found.replicas:
        replica = Replica(held.tp, node)
        place = places.get(replica, Place("", ""))
        places[replica] = place._replace(**{"future" if held.is_future else "present": found.path})


def move_text(replica: Replica, place: Place | None, target: str) -> str:
    """The state of a move, as --verify prints it. place: None if the broker does not answer."""
    where, name = f"Partition {replica.tp} on broker {replica.node_id}", f"{replica.tp}-{replica.node_id}"
    # 1. No broker. 2. No replica, or a log directory out of service. 3. On its way. 4. On another way. 5. There, or not
    # begun.
    if place is None:
        return f"Partition {replica.tp} cannot be found in any live log directory on broker {replica.node_id}."
    if not place.present:
        return (
            f"Partition {replica.tp} is not found in any live log dir on broker {replica.node_id}. There is likely an "
            "offline log directory on the broker."
        )
    if place.future == target and place.present != target:
        return f"Reassignment of replica {name} is still in progress."
    if place.future:
        return f"{where} is being moved to log dir {place.future} instead of {target}."
    if place.present == target:
        return f"Reassignment of replica {name} completed successfully."
    return f"{where} is not being moved from log dir {place.present} to {target}."


def start_moves(admin: Admin, targets: Mapping[Replica, str], timeout_ms: int) -> None:
    """Start the moves of replicas, and wait for replicas that their brokers do not have yet.

    timeout_ms: how long. Raises ToolError.
    """
    until, left = time.monotonic() + timeout_ms / 1000, dict(targets)
    while left:
        results = admin.alter_replica_log_dirs(left)
        for replica, error in results.items():
            if error is None:
                path = left.pop(replica)
                print(
                    f"Successfully started moving log directory to {path} for replica {replica.tp} with broker "
                    f"{replica.node_id} ",
                    flush=True,
                )
            elif not _comes_later(error):
                raise ToolError(f"Failed to alter dir for {replica.tp}-{replica.node_id}", FAILED)
        if left and time.monotonic() >= until:
            names = ",".join(f"{replica.tp}-{replica.node_id}" for replica in left)
            moves = "move" if len(left) == 1 else "moves"
            raise ToolError(f"Timed out before log directory {moves} could be started for: {names}")
        if left:
            time.sleep(_PAUSE_S)


def _comes_later(error: ClientError) -> bool:
    return isinstance(error, RefusedError) and error.code is ErrorCode.REPLICA_NOT_AVAILABLE


def sorted_replicas(targets: Mapping[Replica, str]) -> dict[Replica, str]:
    """By partition and broker."""

    def rank(item: tuple[Replica, str]) -> tuple[TopicPartition, int]:
        return item[0].tp, item[0].node_id

    return dict(sorted(targets.items(), key=rank))
