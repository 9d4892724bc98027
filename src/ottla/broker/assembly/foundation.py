"""The objects that all wings of a broker use.

Zone: deterministic. Construction only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.broker.alarm import SharedAlarm
from ottla.broker.assembly.login import LoginWing, build_login, new_users
from ottla.broker.containment import Containment
from ottla.broker.dispatch import Dispatch
from ottla.broker_client import BrokerClient
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Delta
from ottla.cluster.leaders import ImageLeaders
from ottla.config.broker import BrokerConfig
from ottla.config.broker_authorizer import split_principals
from ottla.effects import Effects
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.partition_registry import PartitionRegistry
from ottla.requests import RightsOf
from ottla.seams import World
from ottla.security.audit_log import AuditLog
from ottla.security.authorization.authorizer import Authorizer
from ottla.security.authorization.connection_rights import AllRights
from ottla.security.sasl.users import SaslUsers
from ottla.storage.log_manager import LogManager

SLICE_PAUSE_MS: Final = 1
"""Pause between two slices of large requests, for other turns."""


class Foundation(NamedTuple):
    """What one broker is built on."""

    config: BrokerConfig
    world: World
    effects: Effects
    hosted: PartitionRegistry
    alarm: SharedAlarm
    containment: Containment
    purgatory: Purgatory
    logs: LogManager
    cluster: Cluster
    """Its view of the cluster."""
    leaders: ImageLeaders
    peers: BrokerClient
    """Sends requests to other brokers."""
    dispatch: Dispatch
    audit: AuditLog
    authorizer: Authorizer | None
    """None: everything is allowed."""
    rights: AllRights | None
    """The rights of connections; None without an authorizer."""

    @property
    def rights_of(self) -> RightsOf | None:
        """What a connection may do; None: there is no authorizer."""
        return None if self.rights is None else self.rights.rights_of

    login: LoginWing

    @property
    def node_id(self) -> int:
        """This broker's number."""
        return self.config.node_id


def lay_foundation(
    config: BrokerConfig,
    world: World,
    on_change: Callable[[Delta], None],
    on_dir_offline: Callable[[str], None],
    users: SaslUsers | None = None,
) -> Foundation:
    """Create the objects. `on_change` is called after every change of the image of the cluster, `on_dir_offline` with
    the name of a log directory that fails; `users`: those that can log in, by default those of the file."""
    clock, network = world.clock, world.network
    alarm = SharedAlarm(clock)
    containment = Containment(network, clock)
    purgatory = Purgatory(alarm, containment.contain_callback)
    cluster = Cluster(config, purgatory, on_change)
    audit = AuditLog(clock)
    authorizer, rights = _new_authorizer(config, world, audit)
    login = build_login(config, world, purgatory, users or new_users(config, world))
    dispatch = Dispatch(
        network,
        lambda action: purgatory.look_after(SLICE_PAUSE_MS, action),
        config.inter_broker_listener,
        world.store is None,
        bool(world.broker_secret),
        containment,
        None if rights is None else rights.rights_of,
        login.clients if config.sasl_listeners else None,
    )
    return Foundation(
        config,
        world,
        Effects(),
        PartitionRegistry(),
        alarm,
        containment,
        purgatory,
        LogManager(world.disks, clock, world.entropy, config, on_dir_offline, world.workers),
        cluster,
        ImageLeaders(lambda: cluster.image),
        BrokerClient(network, clock, config.node_id),
        dispatch,
        audit,
        authorizer,
        rights,
        login,
    )


def _new_authorizer(
    config: BrokerConfig, world: World, audit: AuditLog
) -> tuple[Authorizer, AllRights] | tuple[None, None]:
    if not config.authorizer_class_name:
        return None, None
    allow_without_acl = config.allow_everyone_if_no_acl_found
    authorizer = Authorizer(split_principals(config.super_users), allow_without_acl=allow_without_acl)
    # A broker is known by its proof. Without a secret it is known by its rights, unless there is no other broker.
    is_known_by_rights = world.store is not None and not world.broker_secret
    return authorizer, AllRights(authorizer, audit, config.inter_broker_listener if is_known_by_rights else None)
