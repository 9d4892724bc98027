"""Creates the handlers of Produce and Fetch, and registers them.

Zone: deterministic. Construction only.
"""

from __future__ import annotations

from ottla.broker.assembly.foundation import Foundation
from ottla.replication.fetch import fetch
from ottla.replication.fetch.fetch import FetchHandler
from ottla.replication.fetch.fetch_quota import FetchQuota
from ottla.replication.fetch.fetch_session import FetchSessions
from ottla.replication.fetch.replica_selector import selector_named
from ottla.replication.produce import produce
from ottla.replication.produce.produce import ProduceHandler
from ottla.replication.produce.verifier import Verifier
from ottla.replication.replica_manager import ReplicaManager


def add_produce(base: Foundation, verifier: Verifier) -> None:
    """Register Produce."""
    contain, run_steps = base.containment.contain_defect, base.dispatch.sliced.run_steps
    handler = ProduceHandler(
        base.world, base.hosted, base.purgatory, base.leaders, verifier, contain, run_steps, base.rights_of
    )
    base.dispatch.add_hot(produce.DECLARATION, handler.on_request)


def add_fetch(base: Foundation, replicas: ReplicaManager, quota: FetchQuota) -> FetchHandler:
    """Register Fetch. Returns its handler, which drops the fetches of connections that end."""
    config, world = base.config, base.world
    handler = FetchHandler(
        world,
        base.hosted,
        base.purgatory,
        FetchSessions(world.clock, world.entropy, config.max_incremental_fetch_session_cache_slots),
        base.effects.queue_effect,
        base.dispatch.is_broker,
        base.leaders,
        selector_named(config.replica_selector_class),
        replicas.throttles.leader,
        base.containment.contain_defect,
        base.dispatch.sliced.run_steps,
        base.rights_of,
        quota,
    )
    base.dispatch.add_hot(fetch.DECLARATION, handler.on_request)
    return handler
