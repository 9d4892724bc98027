"""What a Produce costs with an authorizer, in calls, and that it follows each change of the ACLs.

Zone: deterministic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.security.authorization.guarded import connection
from tests.security.still_clock import StillClock

from ottla.acls import AclEntry, Operation, Permission, ResourcePattern, ResourceType
from ottla.record.batch import MAGIC_POS, MAGIC_V2, TRANSACTIONAL
from ottla.replication.leaders import NoLeaders
from ottla.replication.produce.produce_items import CODEC_POS, DeniedBatch
from ottla.replication.produce.produce_rights import ProduceRights
from ottla.security.audit_log import AuditLog
from ottla.security.authorization.authorizer import Authorizer
from ottla.security.authorization.connection_rights import AllRights

WRITE, TOPIC = Operation.WRITE, ResourceType.TOPIC


def records(flags: int = 0) -> memoryview:
    batch = bytearray(100)
    batch[MAGIC_POS], batch[CODEC_POS] = MAGIC_V2, flags
    return memoryview(batch)


def allow(authorizer: Authorizer, name: str, principal: str = "User:ann") -> None:
    authorizer.replace_acls(ResourcePattern(TOPIC, name), [AclEntry(principal, "*", WRITE, Permission.ALLOW)])


@pytest.fixture
def authorizer() -> Authorizer:
    made = Authorizer()
    for number in range(100):
        allow(made, f"t{number}")
    made.mark_loaded()
    return made


@pytest.fixture
def rights(authorizer: Authorizer) -> ProduceRights:
    all_rights = AllRights(authorizer, AuditLog(StillClock()), None)
    return ProduceRights(all_rights.rights_of, {}, NoLeaders())


def count_calls(act: Callable[[], object]) -> int:
    """The number of Python functions that `act` calls in this thread."""
    calls = 0

    def note(_frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls - 1  # `act` itself


def test_a_cached_decision_of_a_partition_costs_no_call(rights: ProduceRights) -> None:
    peer = connection("User:ann")
    many = [(f"t{number}", 0, records()) for number in range(100)]
    assert rights.refuse_denied(peer, None, many) is many, "the decisions are cached from now on"
    for items in (many[:1], many):
        assert count_calls(lambda items=items: rights.refuse_denied(peer, None, items)) == 3
        assert rights.refuse_denied(peer, None, items) is items


def test_a_right_that_is_taken_away_counts_at_the_next_request(rights: ProduceRights, authorizer: Authorizer) -> None:
    peer, items = connection("User:ann"), [("t0", 0, records()), ("t1", 0, records())]
    assert rights.refuse_denied(peer, None, items) is items
    authorizer.replace_acls(ResourcePattern(TOPIC, "t1"), [])
    kept, denied = rights.refuse_denied(peer, None, items)
    assert kept is items[0]
    assert isinstance(denied[2], DeniedBatch)
    allow(authorizer, "t1")
    assert rights.refuse_denied(peer, None, items) is items


def test_a_login_counts_at_the_next_request(rights: ProduceRights) -> None:
    peer, items = connection("User:ann"), [("t0", 0, records())]
    assert rights.refuse_denied(peer, None, items) is items
    peer.principal = "User:eve"
    ((_, _, denied),) = rights.refuse_denied(peer, None, items)
    assert isinstance(denied, DeniedBatch)


def test_records_of_a_transaction_need_its_id_whatever_is_cached(rights: ProduceRights) -> None:
    peer, items = connection("User:ann"), [("t0", 0, records())]
    assert rights.refuse_denied(peer, None, items) is items
    items = [*items, ("t1", 0, records(TRANSACTIONAL))]
    refused = rights.refuse_denied(peer, "x", items)
    assert all(isinstance(batch, DeniedBatch) for _, _, batch in refused)
