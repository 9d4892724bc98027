"""Every safeguard of a broker by its name, and all but one.

Zone: deterministic. What each one guards stands where it is asked, in its own room. A log's safeguards have plain
names, as with a single broker; those of other rooms have their room before the name.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

from ottla.broker.safeguards import BrokerSafeguards
from ottla.cluster.controller.safeguards import ControllerSafeguards
from ottla.groups.safeguards import GroupSafeguards
from ottla.replication.safeguards import ReplicationSafeguards
from ottla.storage.safeguards import Safeguards as StorageSafeguards
from ottla.transactions.safeguards import TransactionSafeguards

STORAGE: Final = tuple(switch.name for switch in fields(StorageSafeguards))
REPLICATION: Final = tuple(f"replication.{switch.name}" for switch in fields(ReplicationSafeguards))
CONTROLLER: Final = tuple(f"controller.{switch.name}" for switch in fields(ControllerSafeguards))
TRANSACTIONS: Final = tuple(f"transactions.{switch.name}" for switch in fields(TransactionSafeguards))
GROUPS: Final = tuple(f"groups.{switch.name}" for switch in fields(GroupSafeguards))
NAMES: Final = STORAGE + REPLICATION + CONTROLLER + TRANSACTIONS + GROUPS


def without(name: str) -> BrokerSafeguards:
    """All safeguards but the one of this name."""
    assert name in NAMES, name
    room, _, switch = name.rpartition(".")
    every = BrokerSafeguards()
    switches = getattr(every, room or "storage")
    return replace(every, **{room or "storage": replace(switches, **{switch: False})})
