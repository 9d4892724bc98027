"""What the application of a producer was told, beside what all clients of a cluster see.

Zone: pure. Facts only; judging them is `checkers.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.history import Write
from ottla.types import TopicPartition


@dataclass(slots=True)
class Promise:
    """What a producer promises by its settings."""

    idempotent: bool
    ordered: bool
    """Idempotent, or one request at a time: offsets rise in the order of sends."""
    alone: bool
    """One request at a time: what is acknowledged is acknowledged in that order, too."""
    patience_ns: int
    """delivery.timeout.ms"""


@dataclass(slots=True)
class Sent:
    """One record that a producer accepted."""

    number: int
    """In the order in which its producer accepted records."""
    write: Write
    """The same as others see it: one record."""
    promise: Promise
    calm: bool = False
    """Accepted when everything had been healed: nothing excuses a failure."""
    outcomes: int = 0
    """How often the application was told what became of it."""
    error: str = ""
    """Name of the error it failed with, and its cause."""
    turn: int = 0
    """Which outcome of its producer's it was."""


class Owned(NamedTuple):
    """What the application of a group's member works on from then on."""

    group: str
    generation: int
    member: str
    partitions: tuple[TopicPartition, ...]
    at_ns: int


@dataclass(slots=True)
class ClientHistory(ClusterHistory):
    """Everything the checkers of the clients look at."""

    sent: list[Sent] = field(default_factory=list)
    """By producer in the order of acceptance."""
    unfounded: list[str] = field(default_factory=list)
    """Records that failed before their time was over, for a reason that would have passed."""
    restless: list[str] = field(default_factory=list)
    """Producers that asked for work again and again without a cause."""
    owned: list[Owned] = field(default_factory=list)
    expelled: list[str] = field(default_factory=list)
    """Members whose machine gave up."""
