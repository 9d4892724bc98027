"""The outcomes that the application of a producer got, in addition to what all clients of a cluster see.

Zone: pure. Facts only; `checkers.py` judges them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.history import Write
from ottla.types import TopicPartition


@dataclass(slots=True)
class Promise:
    """The guarantees that follow from the settings of a producer."""

    idempotent: bool
    ordered: bool
    """Idempotent, or one request at a time: offsets rise in the order of sends."""
    alone: bool
    """One request at a time: acknowledgements also arrive in the order of sends."""
    patience_ns: int
    """delivery.timeout.ms"""


@dataclass(slots=True)
class Sent:
    """One record that a producer accepted."""

    number: int
    """In the order in which its producer accepted records."""
    write: Write
    """The record as the other checkers see it."""
    promise: Promise
    calm: bool = False
    """Accepted when everything had been healed: nothing excuses a failure."""
    outcomes: int = 0
    """How often its callback was called."""
    error: str = ""
    """Name and cause of the error that it failed with."""
    turn: int = 0
    """The position of its outcome among all outcomes of its producer."""


class Owned(NamedTuple):
    """The partitions that a group member processes from then on."""

    group: str
    generation: int
    member: str
    partitions: tuple[TopicPartition, ...]
    at_ns: int


@dataclass(slots=True)
class ClientHistory(ClusterHistory):
    """Input of the checkers of the clients."""

    sent: list[Sent] = field(default_factory=list)
    """By producer in the order of acceptance."""
    unfounded: list[str] = field(default_factory=list)
    """Records that failed before their time was over, with an error that a retry would have solved."""
    restless: list[str] = field(default_factory=list)
    """Producers that took many turns in a row without work."""
    owned: list[Owned] = field(default_factory=list)
    expelled: list[str] = field(default_factory=list)
    """Members whose state machine gave up."""
