"""The safeguards of all packages of a broker. The simulator switches single ones off to prove that its checks notice.

Zone: pure. Only switches; the guarded code checks them. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.replication.safeguards import ReplicationSafeguards


@dataclass(frozen=True, slots=True)
class BrokerSafeguards:
    """The switches of a broker, by package."""

    replication: ReplicationSafeguards = field(default_factory=ReplicationSafeguards)
