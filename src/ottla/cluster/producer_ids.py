"""Allocates producer ids in blocks of 1000 from the metadata store. No id is allocated twice.

Zone: deterministic. The broker holds one block. When it is used up, a conditional write allocates the next one, for
which requests wait.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ottla.cluster.store.layout import PRODUCER_ID_BLOCK, BlockNode, BrokenNode, decode_block, encode_block
from ottla.cluster.store.workflow import Workflow, read_node, run_workflow, submit_multi
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Done, Failure, Kind, MetadataStore, Op

BLOCK_SIZE: Final = 1000
_TRIES: Final = 10
"""Attempts to allocate a block before its requests fail, because other brokers are always faster."""


class ProducerIds:
    """The producer ids of one broker."""

    def __init__(self, store: MetadataStore, node_id: int) -> None:
        self._store = store
        self._node_id = node_id
        self._next = 0
        self._end = -1
        self._waiting: deque[Done[int]] = deque()

    def take_producer_id(self, done: Done[int]) -> None:
        """Pass the next id to `done`: at once from the block, or later from the next block."""
        if not self._waiting and self._next <= self._end:
            self._next += 1
            done(self._next - 1)
            return
        self._waiting.append(done)
        # Later requests wait for the same block.
        if len(self._waiting) == 1:
            run_workflow(self._store, self._claim_block(), self._on_claimed)

    def _claim_block(self) -> Workflow[BlockNode]:
        """Allocate the next block. Raises Failure, or ApiError when other brokers are always faster."""
        for _ in range(_TRIES):
            node = yield from read_node(PRODUCER_ID_BLOCK)
            block = self._block_after(None if node is None else node.data)
            content = encode_block(block)
            op = Op("create", PRODUCER_ID_BLOCK, content) if node is None else _put_block(content, node.version)
            try:
                yield from submit_multi("producer ids", [op])
            except Failure as failure:
                # After a time-out the block may have been allocated. It is not used: the next claim starts after it.
                # Skipped ids cost nothing, whereas one id for two producers would break their sequence numbers.
                if failure.kind is not Kind.CONFLICT:
                    raise
            else:
                return block
        raise ApiError(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "other brokers allocated producer ids at the same time; try again"
        )

    def _block_after(self, data: bytes | None) -> BlockNode:
        try:
            start = decode_block(PRODUCER_ID_BLOCK, data).end + 1 if data else 0
        except BrokenNode as broken:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(broken)) from None
        # A producer id is an int64, and so is the end of the block: the whole block has to fit.
        if start > 2**63 - 1 - BLOCK_SIZE:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "there are no producer ids left")
        return BlockNode(self._node_id, start, start + BLOCK_SIZE - 1)

    def _on_claimed(self, outcome: BlockNode | Failure | ApiError) -> None:
        waiting, self._waiting = self._waiting, deque()
        if isinstance(outcome, BlockNode):
            self._next, self._end = outcome.start, outcome.end
        # More requests than the block has ids queue again, and the first of them allocates the next block.
        for done in waiting:
            if isinstance(outcome, BlockNode):
                self.take_producer_id(done)
            else:
                done(_as_failure(outcome))


def _put_block(content: bytes, version: int) -> Op:
    return Op("put", PRODUCER_ID_BLOCK, content, version)


def _as_failure(error: Failure | ApiError) -> Failure:
    return error if isinstance(error, Failure) else Failure(Kind.NOT_DONE, error.message)
