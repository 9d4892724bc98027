"""The controller finalizes levels of features (KIP-584): it checks them against all brokers, and writes the node.

Zone: deterministic.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ottla.cluster.controller.partition_state_store import PartitionStateStore
from ottla.cluster.features.feature_levels import (
    FeatureUpdate,
    FinalizedFeatures,
    apply_updates,
    check_broker,
    decode_finalized,
    encode_levels,
)
from ottla.cluster.store.layout import BROKER_IDS, FEATURE, BrokenNode, broker_path
from ottla.cluster.store.workflow import Workflow
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, Node, Op

logger = logging.getLogger(__name__)

_TRIES: Final = 10
"""Attempts of a change, each of which may lose a race with an operator who writes the node."""


def update_features(
    core: PartitionStateStore, updates: Sequence[FeatureUpdate], validate_only: bool
) -> Workflow[FinalizedFeatures]:
    """Decide and write new levels, all or none. Returns the levels that are finalized now.

    Raises ApiError INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED, NOT_CONTROLLER; Failure.
    """
    # 1. The node as it is now, with its version, on which the write is conditional.
    # 2. The rules of levels, and then all brokers: both only refuse.
    # 3. One fenced write. After a lost answer or a conflict all steps are repeated, so that a write that did succeed is
    #    found in step 1, and changes nothing again.
    for _ in range(_TRIES):
        node = yield from core.read_node(FEATURE)
        present = _read_present(node)
        # Checked again in each attempt: the levels may be others by now.
        levels = apply_updates(present, updates)
        yield from _check_brokers(core, updates)
        if validate_only or levels == present.levels:
            return present
        data = encode_levels(levels)
        op = Op("create", FEATURE, data) if node is None else Op("put", FEATURE, data, node.version)
        try:
            yield from core.write_multi("features", [op])
        except Failure as failure:
            if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN, Kind.TIMEOUT):
                raise
            continue  # the node decides: it is read again
        logger.info("controller: finalized the features %s", levels)
        return FinalizedFeatures(levels, 0 if node is None else node.version + 1)
    raise ApiError(ErrorCode.FEATURE_UPDATE_FAILED, f"other writers keep changing {FEATURE}; try again")


def _read_present(node: Node | None) -> FinalizedFeatures:
    try:
        return decode_finalized(node)
    except BrokenNode as broken:
        text = f"{broken}; delete the node, and finalize the features again"
        raise ApiError(ErrorCode.FEATURE_UPDATE_FAILED, text) from None


def _check_brokers(core: PartitionStateStore, updates: Sequence[FeatureUpdate]) -> Workflow[None]:
    # The registrations, because a broker may have come since the controller's last decision.
    names = yield from core.read_children(BROKER_IDS)
    numbers = sorted(int(name) for name in names if name.isdecimal())
    nodes = yield from core.read_nodes([broker_path(number) for number in numbers])
    for number, node in zip(numbers, nodes, strict=True):
        if node is not None:
            check_broker(number, node.data, updates)
