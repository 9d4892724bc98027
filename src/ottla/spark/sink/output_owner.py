"""The owner of an output: the query that writes under an `outputId`, of which another checkpoint is refused.

Zone: real. A query with a new checkpoint reads its sources from their beginning, so that it writes every row again:
after a checkpoint was deleted, and in a full refresh of a declarative pipeline. With an `outputId` the first task of a
query writes the query's id as a position, like a marker, under a transactional id of the output; tasks of another query
find it, and are refused. Of queries that begin at the same time one becomes the owner.
"""

from __future__ import annotations

import json
from typing import Final

from ottla.client.batch_transaction import BatchTransaction, ConnectionCache, end_transaction
from ottla.client.errors import ClientError
from ottla.client.positions import OffsetAndMetadata
from ottla.client.retry import wall_ms
from ottla.client.settings import ClientConfig
from ottla.client.stable_positions import stable_positions
from ottla.spark.errors import BadCheckpoint, Fenced, OtherCheckpoint
from ottla.spark.sink.claim_pauses import TRIES, claim_timeout_ms, pause_after
from ottla.spark.sink.exactly_once import MARKER
from ottla.spark.sink.markers import send_marker
from ottla.spark.sink.task_claims import is_overtaken

_HOUR_MS: Final = 3_600_000
REFRESH_HOURS: Final = 12
"""A position is written again when it is older, because brokers forget those of idle groups (offsets.retention.minutes,
a week by default)."""
_known: Final[dict[tuple[ClientConfig, str, str], int]] = {}
"""Outputs whose owner this process knows, with the hour in which that was found."""
_MOST: Final = 100


def claim_output(links: ConnectionCache, name: str, query: str, timeout_ms: int) -> None:
    """Become the owner of an output, or find that the query is it already.

    name: of the output's group and transactional id, with the prefix. Raises OtherCheckpoint, BadCheckpoint, Fenced and
    the client's errors.
    """
    hour = wall_ms() // _HOUR_MS
    key = (links.cluster.config, name, query)
    if _known.get(key) == hour:
        return
    for attempt in range(TRIES):
        try:
            if _is_fresh(_read_owner(links, name, query), hour) or _write_owner(links, name, query, hour, timeout_ms):
                break
        except ClientError as error:
            if not is_overtaken(error):
                raise
            pause_after(attempt)
    else:
        raise Fenced(f"output {name}: other tasks kept claiming it; start the query again")
    while len(_known) >= _MOST:
        del _known[next(iter(_known))]
    _known[key] = hour


def _write_owner(links: ConnectionCache, name: str, query: str, hour: int, timeout_ms: int) -> bool:
    transaction = BatchTransaction(links, name, claim_timeout_ms(timeout_ms))
    transaction.fence_producer()
    # Again: another query may have become the owner before this one took the transactional id.
    _read_owner(links, name, query)
    said = json.dumps({"q": query, "h": hour}, separators=(",", ":"))
    send_marker(transaction, name, OffsetAndMetadata(1, -1, said))
    end_transaction(links, transaction.prepared_transaction(), commit=True)
    return True


def _is_fresh(written: int | None, hour: int) -> bool:
    return written is not None and hour - written < REFRESH_HOURS


def _read_owner(links: ConnectionCache, name: str, query: str) -> int | None:
    """The hour in which the query was written as the owner; None if there is no owner. Raises OtherCheckpoint."""
    found = stable_positions(links.coordinators.groups, name, [MARKER]).get(MARKER)
    if found is None:
        return None
    try:
        said = json.loads(found.metadata)
        owner, hour = str(said["q"]), int(said["h"])
    except (ValueError, TypeError, KeyError):
        raise BadCheckpoint(
            f"group {name} has a position that the sink did not write: {found.metadata[:100]!r}. Give another outputId"
        ) from None
    if owner != query:
        raise OtherCheckpoint(
            f"the output {name} belongs to the checkpoint of query {owner}, and this is query {query}: with a new "
            "checkpoint, or after a full refresh, it would write every row again. Continue with the old checkpoint; or "
            "give another outputId to write them again. Nothing was written"
        )
    return hour
