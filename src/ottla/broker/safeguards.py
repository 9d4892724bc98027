"""The safeguards of all packages of a broker. The simulator switches single ones off to prove that its checks notice.

Zone: pure. Only switches; the guarded code checks them. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.broker.containment import ContainmentSafeguards
from ottla.replication.safeguards import ReplicationSafeguards
from ottla.storage.safeguards import Safeguards as StorageSafeguards


@dataclass(frozen=True, slots=True)
class BrokerSafeguards:
    """The switches of a broker, by package."""

    storage: StorageSafeguards = field(default_factory=StorageSafeguards)
    replication: ReplicationSafeguards = field(default_factory=ReplicationSafeguards)
    containment: ContainmentSafeguards = field(default_factory=ContainmentSafeguards)
