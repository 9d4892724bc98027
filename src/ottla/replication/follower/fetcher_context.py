"""Settings and dependencies that all fetchers of a broker share.

Zone: deterministic. Values and references only; `fetcher` uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.broker_client import BrokerClient
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.control import ControlFence
from ottla.replication.follower.leader_requests import LeaderRequests
from ottla.replication.partition.partition import Partition
from ottla.replication.throttle import Throttle
from ottla.seams import Clock


class FetchSettings(NamedTuple):
    """How this broker fetches. Times in ms, sizes in bytes; the configuration keys are replica.*."""

    max_bytes: int
    """replica.fetch.max.bytes, of one partition."""
    response_max_bytes: int
    wait_max_ms: int
    min_bytes: int
    backoff_ms: int
    """replica.fetch.backoff.ms: the longest wait after an error."""
    socket_timeout_ms: int
    version: int
    """The version of Fetch."""


class FetcherContext(NamedTuple):
    """Settings and dependencies of all fetchers of a broker."""

    settings: FetchSettings
    clock: Clock
    peers: BrokerClient
    purgatory: Purgatory
    fence: ControlFence
    questions: LeaderRequests
    throttle: Throttle
    later: Callable[[Callable[[], None]], None]
    on_failed: Callable[[Partition], None]
    """Called with a partition that is not fetched any more until the controller sends a new state for it."""
    on_responding: Callable[[int, bool], None]
    """Called when a leader stops answering (False) or answers again (True)."""
