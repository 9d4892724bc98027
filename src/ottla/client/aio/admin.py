"""Managing a cluster from asyncio programs: the calls of the blocking admin clients, awaited.

Zone: real. One thread per object makes the calls, one after the other. The blocking clients document them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from ottla.client.admin.acls import AclAdmin
from ottla.client.admin.admin import Admin as BlockingAdmin
from ottla.client.admin.groups import GroupAdmin
from ottla.client.admin.quorum import QuorumAdmin
from ottla.client.admin.quotas import QuotaAdmin
from ottla.client.admin.scram import ScramAdmin
from ottla.client.admin.share_groups import ShareGroupAdmin
from ottla.client.admin.tokens import TokenAdmin
from ottla.client.admin.transactions import TransactionAdmin
from ottla.client.aio.worker import Worker
from ottla.client.cluster import Cluster
from ottla.client.settings import ClientConfig

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
_KINDS: Final = (
    *(BlockingAdmin, GroupAdmin, ShareGroupAdmin, TransactionAdmin, QuorumAdmin),
    *(AclAdmin, ScramAdmin, QuotaAdmin, TokenAdmin),
)
"""The blocking clients."""


def _async_method(
    kind: type[A], method: Callable[Concatenate[A, P], R]
) -> Callable[Concatenate[Admin, P], Coroutine[Any, Any, R]]:
    """A coroutine method that runs `method` of the blocking client `kind` in the thread; keeps its documentation."""

    @functools.wraps(method)
    async def call(self: Admin, /, *arguments: P.args, **options: P.kwargs) -> R:
        return await self._worker.hand_over(lambda: method(self._blocking_client(kind), *arguments, **options))

    return call


class Admin:
    """Admin calls; results come per item, the value or the error in its place. Close it, or use `async with`.

    Every call takes at most `default.api.timeout.ms`, or until the deadline given; calls of one object wait for each
    other. Cancelling a call does not stop it: it runs to its end, and the next call waits for it.
    """

    def __init__(self, settings: Mapping[str, str | int | bool]) -> None:
        """settings: Kafka's keys. The first call connects. Raises ConfigError."""
        self._cluster = Cluster(ClientConfig.from_mapping(settings))
        self._worker = Worker("ottla-admin")
        self._closed = False
        self._clients: dict[type, Any] = {kind: kind(self._cluster) for kind in _KINDS}

    def _blocking_client(self, kind: type[A]) -> A:
        found: A = self._clients[kind]
        return found

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, after the calls made so far have ended. Idempotent."""
        if not self._closed:
            self._closed = True
            closed = self._worker.hand_over(self._cluster.close)
            self._worker.end_thread()
            await closed

    list_topics = _async_method(BlockingAdmin, BlockingAdmin.list_topics)
    describe_topics = _async_method(BlockingAdmin, BlockingAdmin.describe_topics)
    create_topics = _async_method(BlockingAdmin, BlockingAdmin.create_topics)
    delete_topics = _async_method(BlockingAdmin, BlockingAdmin.delete_topics)
    create_partitions = _async_method(BlockingAdmin, BlockingAdmin.create_partitions)
    list_offsets = _async_method(BlockingAdmin, BlockingAdmin.list_offsets)
    delete_records = _async_method(BlockingAdmin, BlockingAdmin.delete_records)
    describe_log_dirs = _async_method(BlockingAdmin, BlockingAdmin.describe_log_dirs)
    alter_replica_log_dirs = _async_method(BlockingAdmin, BlockingAdmin.alter_replica_log_dirs)
    describe_cluster = _async_method(BlockingAdmin, BlockingAdmin.describe_cluster)
    describe_configs = _async_method(BlockingAdmin, BlockingAdmin.describe_configs)
    alter_configs = _async_method(BlockingAdmin, BlockingAdmin.alter_configs)
    elect_leaders = _async_method(BlockingAdmin, BlockingAdmin.elect_leaders)
    alter_partition_reassignments = _async_method(BlockingAdmin, BlockingAdmin.alter_partition_reassignments)
    list_partition_reassignments = _async_method(BlockingAdmin, BlockingAdmin.list_partition_reassignments)
    list_groups = _async_method(GroupAdmin, GroupAdmin.list_groups)
    describe_group = _async_method(GroupAdmin, GroupAdmin.describe_group)
    group_offsets = _async_method(GroupAdmin, GroupAdmin.group_offsets)
    alter_group_offsets = _async_method(GroupAdmin, GroupAdmin.alter_group_offsets)
    delete_group_offsets = _async_method(GroupAdmin, GroupAdmin.delete_group_offsets)
    delete_groups = _async_method(GroupAdmin, GroupAdmin.delete_groups)
    remove_members = _async_method(GroupAdmin, GroupAdmin.remove_members)
    describe_share_group = _async_method(ShareGroupAdmin, ShareGroupAdmin.describe_share_group)
    share_group_offsets = _async_method(ShareGroupAdmin, ShareGroupAdmin.share_group_offsets)
    alter_share_group_offsets = _async_method(ShareGroupAdmin, ShareGroupAdmin.alter_share_group_offsets)
    delete_share_group_offsets = _async_method(ShareGroupAdmin, ShareGroupAdmin.delete_share_group_offsets)
    list_transactions = _async_method(TransactionAdmin, TransactionAdmin.list_transactions)
    describe_transaction = _async_method(TransactionAdmin, TransactionAdmin.describe_transaction)
    describe_producers = _async_method(TransactionAdmin, TransactionAdmin.describe_producers)
    abort_transaction = _async_method(TransactionAdmin, TransactionAdmin.abort_transaction)
    describe_metadata_quorum = _async_method(QuorumAdmin, QuorumAdmin.describe_metadata_quorum)
    describe_acls = _async_method(AclAdmin, AclAdmin.describe_acls)
    create_acls = _async_method(AclAdmin, AclAdmin.create_acls)
    delete_acls = _async_method(AclAdmin, AclAdmin.delete_acls)
    describe_user_scram_credentials = _async_method(ScramAdmin, ScramAdmin.describe_user_scram_credentials)
    alter_user_scram_credentials = _async_method(ScramAdmin, ScramAdmin.alter_user_scram_credentials)
    describe_client_quotas = _async_method(QuotaAdmin, QuotaAdmin.describe_client_quotas)
    alter_client_quotas = _async_method(QuotaAdmin, QuotaAdmin.alter_client_quotas)
    create_delegation_token = _async_method(TokenAdmin, TokenAdmin.create_delegation_token)
    renew_delegation_token = _async_method(TokenAdmin, TokenAdmin.renew_delegation_token)
    expire_delegation_token = _async_method(TokenAdmin, TokenAdmin.expire_delegation_token)
    describe_delegation_tokens = _async_method(TokenAdmin, TokenAdmin.describe_delegation_tokens)
