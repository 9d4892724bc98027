"""Retries and dead letters: records that failed come back when it is time, or end where a person can see them.

Zone: real. An ordinary user of `ottla.client`; nothing of the broker. This page names what users lean on.

    pure   headers · policy · routing · window · places · scheduler (and the embedded one) · order · stats
    real   retrier: `retry_later` · ordered: by key · mover, handover, destinations, payloads: the service ·
           redis_scheduler · dead: dead letters · topics
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
"""Where a name lives: it is imported when it is asked for, as in `ottla.client`."""

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
