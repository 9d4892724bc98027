"""Retries and dead letters: failed records are delivered again when their retry is due, or kept for a person to check.

Zone: real. An ordinary user of `ottla.client`; uses nothing of the broker. This module exports the public names.

    pure   headers · policy · routing · window · offset_metadata · scheduler (with the embedded one)
    real   retrier: `retry_later` · ordered: in the order of keys · redis_scheduler · dead_letters ·
           mover, transactional_forward, destinations, record_cache: the service
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.lazy_imports import names_on_demand

if TYPE_CHECKING:
    from ottla.retry.errors import RetryError
    from ottla.retry.headers import Failure, Names, Origin, Trail
    from ottla.retry.mover import Mover
    from ottla.retry.ordered import OrderedRetrier
    from ottla.retry.policy import Backoff, Dead, Later, PolicyError, RetryPolicy
    from ottla.retry.redis_scheduler import RedisScheduler
    from ottla.retry.retrier import AsyncRetrier, Retrier
    from ottla.retry.scheduler import EmbeddedScheduler

_HOMES: Final = {
    "ottla.retry.errors": "RetryError",
    "ottla.retry.headers": "Failure Names Origin Trail",
    "ottla.retry.mover": "Mover",
    "ottla.retry.ordered": "OrderedRetrier",
    "ottla.retry.policy": "Backoff Dead Later PolicyError RetryPolicy",
    "ottla.retry.redis_scheduler": "RedisScheduler",
    "ottla.retry.retrier": "AsyncRetrier Retrier",
    "ottla.retry.scheduler": "EmbeddedScheduler",
}
"""The module of each name: it is imported on first use, as in `ottla.client`."""

__all__ = [
    "AsyncRetrier",
    "Backoff",
    "Dead",
    "EmbeddedScheduler",
    "Failure",
    "Later",
    "Mover",
    "Names",
    "OrderedRetrier",
    "Origin",
    "PolicyError",
    "RedisScheduler",
    "Retrier",
    "RetryError",
    "RetryPolicy",
    "Trail",
]

__getattr__, __dir__ = names_on_demand(globals(), _HOMES)
