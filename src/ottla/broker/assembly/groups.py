"""The group coordinator of a broker.

Zone: deterministic. Construction only; `ottla.groups` has the coordinator.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.assembly.foundation import Foundation
from ottla.broker.coordination.group_cluster_view import GroupClusterView
from ottla.broker.coordination.group_txn_verification import GroupTxnVerification
from ottla.cluster.coordinators import partition_for
from ottla.coordinator.coordinator import Coordinator
from ottla.coordinator.shard_runtime import RuntimeContext
from ottla.groups.groups import TOPIC, Groups
from ottla.groups.handlers.admin_handlers import GroupAdminHandlers
from ottla.groups.handlers.member_handlers import MemberHandlers
from ottla.groups.handlers.offset_handlers import OffsetHandlers
from ottla.groups.handlers.txn_offset_handlers import TxnOffsetHandlers
from ottla.groups.heartbeats import Heartbeats
from ottla.groups.record_versions import group_record_versions
from ottla.groups.records import GroupCodec
from ottla.groups.shard import GroupShard
from ottla.replication.produce.verifier import Verifier
from ottla.seams import Entropy


class GroupWing(NamedTuple):
    """The coordinator of groups, and its handlers."""

    groups: Groups
    heartbeats: Heartbeats
    handlers: list[object]
    """Objects whose methods are declared as handlers."""


def build_groups(base: Foundation, verifier: Verifier) -> GroupWing:
    """Create the objects. `verifier` asks transaction coordinators for TxnOffsetCommit."""
    config, clock, cluster = base.config, base.world.clock, base.cluster
    tools = RuntimeContext(
        clock,
        base.purgatory,
        base.effects.queue_effect,
        GroupCodec(group_record_versions(config.inter_broker_protocol_version)),
        commit_timeout_ms=config.offsets_commit_timeout_ms,
        buffer_size=config.offsets_load_buffer_size,
        compression=config.offsets_topic_compression_codec,
    )
    shards = Coordinator(TOPIC, tools, lambda _: GroupShard(lambda: cluster.config))
    entropy, view = base.world.entropy, GroupClusterView(cluster)
    groups = Groups(shards, view, partition_for, lambda: cluster.config, lambda: _new_member_id(entropy))
    handlers = [
        MemberHandlers(groups),
        OffsetHandlers(groups, lambda: clock.now().wall_ms),
        TxnOffsetHandlers(groups, lambda: clock.now().wall_ms, GroupTxnVerification(base.hosted, verifier)),
        GroupAdminHandlers(groups),
    ]
    return GroupWing(groups, Heartbeats(groups, base.world.network, base.rights_of), handlers)


def _new_member_id(entropy: Entropy) -> str:
    """A random UUID in its usual text form."""
    text = entropy.random_bytes("member ids", 16).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
