"""The objects that all wings of a broker use.

Zone: deterministic. Construction only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.broker.alarm import SharedAlarm
from ottla.broker.assembly.login import LoginWing, build_login
from ottla.broker.containment import Containment
from ottla.broker.dispatch import Dispatch
from ottla.broker_client import BrokerClient
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Delta
from ottla.cluster.leaders import ImageLeaders
from ottla.config.broker import BrokerConfig
from ottla.effects import Effects
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.partition_registry import PartitionRegistry
from ottla.seams import World
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
    login: LoginWing

    @property
    def node_id(self) -> int:
        """This broker's number."""
        return self.config.node_id


def lay_foundation(config: BrokerConfig, world: World, on_change: Callable[[Delta], None]) -> Foundation:
    """Create the objects. `on_change` is called after every change of the image of the cluster."""
    clock, network = world.clock, world.network
    alarm = SharedAlarm(clock)
    containment = Containment(network, clock)
    purgatory = Purgatory(alarm, containment.contain_callback)
    cluster = Cluster(config, purgatory, on_change)
    login = build_login(config, world, purgatory)
    dispatch = Dispatch(
        network,
        lambda action: purgatory.look_after(SLICE_PAUSE_MS, action),
        config.inter_broker_listener,
        world.store is None,
        bool(world.broker_secret),
        containment,
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
        LogManager(world.disks, clock, world.entropy, config, world.workers),
        cluster,
        ImageLeaders(lambda: cluster.image),
        BrokerClient(network, clock, config.node_id),
        dispatch,
        login,
    )
