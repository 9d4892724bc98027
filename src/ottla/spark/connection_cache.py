"""Connections that a worker process keeps between tasks.

Zone: real. Spark reuses its Python workers, so that a task can use the connections and metadata of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ottla.client.batch_transaction import ConnectionCache
from ottla.client.settings import ClientConfig
from ottla.spark.gc_freeze import freeze_loaded_modules

_kept: Final[dict[ClientConfig, ConnectionCache]] = {}
_MOST: Final = 4


@contextmanager
def cached_connections(config: ClientConfig) -> Iterator[ConnectionCache]:
    """Connections for one user at a time, who may close them. They are also closed after an error.

    After an error responses may still arrive, which the next user would take for its own.
    """
    freeze_loaded_modules()
    # Taken out while it is in use: a reader and a writer in one process then have connections of their own.
    links = _kept.pop(config, None) or ConnectionCache(config)
    try:
        yield links
    except BaseException:
        links.close_connections()
        raise
    if not links.is_open:
        return
    for old in list(_kept)[: max(0, len(_kept) + 1 - _MOST)]:
        _kept.pop(old).close_connections()
    if (other := _kept.pop(config, None)) is not None:
        other.close_connections()
    _kept[config] = links
