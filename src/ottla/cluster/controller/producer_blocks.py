"""Blocks of producer ids for brokers (KIP-730): no id is ever given out twice.

Zone: deterministic.
"""

from __future__ import annotations

from typing import Final

from ottla.cluster.controller.core import Core
from ottla.cluster.layout import PRODUCER_ID_BLOCK, BlockNode, BrokenNode, decode_block, encode_block
from ottla.cluster.producer_ids import BLOCK_SIZE
from ottla.cluster.script import Script
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, Node, Op

_TRIES: Final = 10
"""Races for the next block lost to brokers that take theirs from the store."""


def allocate(core: Core, broker: int, broker_epoch: int) -> Script[tuple[int, int]]:
    """The next block for a broker: (first id, how many). Raises ApiError or Failure."""
    known = core.context.brokers.get(broker)
    if known is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker} is not registered")
    if known.epoch != broker_epoch:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker} has epoch {known.epoch}, not {broker_epoch}")
    for _ in range(_TRIES):
        node = yield from core.get(PRODUCER_ID_BLOCK)
        start = _start(node)
        content = encode_block(BlockNode(broker, start, start + BLOCK_SIZE - 1))
        path = PRODUCER_ID_BLOCK
        op = Op("create", path, content) if node is None else Op("put", path, content, node.version)
        try:
            yield from core.write("producer ids", [op])
        except Failure as failure:
            if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN, Kind.TIMEOUT):
                raise  # else: whoever wrote it, the next block is after what is there now
        else:
            return start, BLOCK_SIZE
    raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "other brokers took the producer ids; try again")


def _start(node: Node | None) -> int:
    if node is None or not node.data:
        return 0
    try:
        start = decode_block(PRODUCER_ID_BLOCK, node.data).end + 1
    except BrokenNode as broken:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(broken)) from None
    if start > 2**63 - 1 - BLOCK_SIZE:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "there are no producer ids left")
    return start
