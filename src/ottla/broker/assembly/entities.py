"""Quotas, and the settings of users, client ids, addresses and other entities.

Zone: deterministic. Construction only; `ottla.security.quotas` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.broker.assembly.forward import Forward
from ottla.broker.dispatch import Dispatch
from ottla.broker.telemetry.receiver import TelemetryReceiver
from ottla.broker.telemetry.subscriptions import Subscriptions
from ottla.broker.telemetry.telemetry_handlers import TelemetryHandlers
from ottla.cluster.entities.entity_reader import CLIENT_METRICS, GROUPS, EntityReader, OnEntityConfig
from ottla.cluster.entities.resource_configs import ResourceConfigs
from ottla.config.broker import BrokerConfig
from ottla.seams import World
from ottla.security.quotas.client_quotas import ClientQuotas
from ottla.security.quotas.entity_quotas import EntityQuotas, OnUserConfig
from ottla.security.quotas.rates import Windows
from ottla.security.quotas.request_throttles import FrameInput, QuotaWindows, RequestThrottles


class EntityWing(NamedTuple):
    """What depends on the settings of entities."""

    reader: EntityReader
    quotas: ClientQuotas
    throttles: RequestThrottles
    resources: ResourceConfigs
    telemetry: TelemetryHandlers
    on_quotas: Forward[[]]
    """Called after every change of the quotas."""

    def throttled_world(self, world: World) -> World:
        """The same world, whose network delays responses by the quotas."""
        return world._replace(network=self.throttles.network)


def build_entities(config: BrokerConfig, world: World, on_user_config: OnUserConfig) -> EntityWing:
    """Create the objects. `on_user_config` receives the settings of each user, also its credentials."""
    quotas = ClientQuotas()
    on_quotas: Forward[[]] = Forward("the handling of changed quotas")
    windows = QuotaWindows(
        Windows(config.quota_window_num, config.quota_window_size_seconds * 1000),
        Windows(config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000),
    )
    throttles = RequestThrottles(quotas, world.clock, world.network, windows)
    subscriptions = Subscriptions()
    resources = ResourceConfigs(subscriptions.set_config)
    receiver = TelemetryReceiver(subscriptions, config.telemetry_max_bytes)
    telemetry = TelemetryHandlers(receiver, world.clock, world.entropy, world.workers)
    reader = EntityReader(_routed(EntityQuotas(quotas, on_quotas, on_user_config), resources))
    return EntityWing(reader, quotas, throttles, resources, telemetry, on_quotas)


def _routed(quotas: EntityQuotas, resources: ResourceConfigs) -> OnEntityConfig:
    receivers = {GROUPS: resources.on_config, CLIENT_METRICS: resources.on_config}

    def on_config(path: str, config: Mapping[str, str]) -> None:
        receivers.get(path.partition("/")[0], quotas.on_config)(path, config)

    return on_config


def new_frame_input(entities: EntityWing, dispatch: Dispatch) -> FrameInput:
    """Create the object that passes frames to the dispatch."""
    frames = FrameInput(entities.throttles, dispatch.on_frame, dispatch.is_for_brokers, entities.telemetry.on_gone)
    entities.on_quotas.bind(frames.refresh_quotas)
    return frames
