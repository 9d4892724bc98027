"""The rights of connections: one object for each, replaced after a login, dropped at the end; and its audit log.

Zone: real.
"""

from __future__ import annotations

import json
import logging
import re

import pytest
from tests.handnode import Asker
from tests.security.still_clock import StillClock

from ottla.acls import AclEntry, Operation, Permission, ResourcePattern, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context
from ottla.security.audit_log import LINES_OF_CONNECTION_PER_S, LINES_PER_S, TEXT_MAX, AuditLog
from ottla.security.authorization.authorizer import Authorizer
from ottla.security.authorization.connection_rights import AllRights
from ottla.security.broker_proof import BROKER_PRINCIPAL

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
READ, WRITE = Operation.READ, Operation.WRITE


class Line:
    """The place of a response on a connection."""

    def __init__(self, peer: Asker) -> None:
        self.peer = peer


def peer_of(principal: str, host: str = "127.0.0.1", listener: str = "PLAINTEXT") -> Asker:
    peer = Asker()
    peer.principal, peer.host, peer.listener = principal, host, listener
    return peer


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def authorizer() -> Authorizer:
    """User:ann may read the topic t."""
    made = Authorizer(["User:boss"])
    made.replace_acls(ResourcePattern(TOPIC, "t"), [AclEntry("User:ann", "*", READ, Permission.ALLOW)])
    made.mark_loaded()
    return made


@pytest.fixture
def rights(authorizer: Authorizer, clock: StillClock) -> AllRights:
    return AllRights(authorizer, AuditLog(clock), None)


def context_of(rights: AllRights, peer: Asker) -> Context:
    return Context(0, 9, 1, None, Line(peer), lambda *_: None, rights=rights.rights_of(peer))


def test_without_an_authorizer_everything_is_allowed() -> None:
    context = Context(0, 9, 1, None, Line(peer_of("User:eve")), lambda *_: None)
    assert context.is_allowed(WRITE, TOPIC, "t")
    assert context.is_allowed_anywhere(WRITE, TOPIC)
    context.check_allowed(Operation.ALTER, CLUSTER)
    assert context.authorized_operations(ResourceType.TRANSACTIONAL_ID, "x") == 1 << 4 | 1 << 8 | 1 << 15


def test_a_request_may_do_what_the_acls_of_its_principal_allow(rights: AllRights) -> None:
    context = context_of(rights, peer_of("User:ann"))
    assert context.is_allowed(READ, TOPIC, "t")
    assert not context.is_allowed(WRITE, TOPIC, "t")
    assert context.authorized_operations(TOPIC, "t") == 1 << READ | 1 << Operation.DESCRIBE
    with pytest.raises(ApiError) as raised:
        context.check_allowed(WRITE, TOPIC, "t")
    assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "t" not in raised.value.message.split(), "the error does not disclose the resource"


def test_the_object_is_kept_until_the_connection_ends(rights: AllRights) -> None:
    peer = peer_of("User:ann")
    first = rights.rights_of(peer)
    assert rights.rights_of(peer) is first
    rights.on_gone(peer)
    assert rights.rights_of(peer) is not first


def test_a_login_replaces_the_rights(rights: AllRights) -> None:
    peer = peer_of("User:ANONYMOUS")
    assert not context_of(rights, peer).is_allowed(READ, TOPIC, "t")
    peer.principal = "User:ann"
    assert context_of(rights, peer).is_allowed(READ, TOPIC, "t")
    peer.principal = BROKER_PRINCIPAL
    assert rights.rights_of(peer) is None


def test_brokers_have_all_rights(rights: AllRights) -> None:
    assert rights.rights_of(peer_of(BROKER_PRINCIPAL)) is None
    assert rights.rights_of(peer_of("", listener="")) is None, "a broker's calls to itself have no listener"


def test_cluster_action_makes_a_broker_only_on_the_listener_of_brokers(authorizer: Authorizer, clock) -> None:
    cluster = ResourcePattern(CLUSTER, "kafka-cluster")
    rights = AllRights(authorizer, AuditLog(clock), "BROKERS")
    peer, client = peer_of("User:b1", listener="BROKERS"), peer_of("User:b1", listener="CLIENTS")
    assert rights.rights_of(peer) is not None
    authorizer.replace_acls(cluster, [AclEntry("User:b1", "*", Operation.CLUSTER_ACTION, Permission.ALLOW)])
    assert rights.rights_of(peer) is None
    assert rights.rights_of(client) is not None
    authorizer.replace_acls(cluster, [])
    assert rights.rights_of(peer) is not None, "the right was taken away"


def test_a_super_user_is_a_broker_at_every_listener(authorizer: Authorizer, clock) -> None:
    """While a rolling restart moves the brokers from one listener to another, they use both."""
    listeners = ("BROKERS", "FUTURE")
    peers = [peer_of("User:boss", listener=each) for each in listeners]
    rights = AllRights(authorizer, AuditLog(clock), "BROKERS")
    assert [rights.rights_of(peer) for peer in peers] == [None, None]
    alone = AllRights(authorizer, AuditLog(clock), None)
    assert None not in [alone.rights_of(peer) for peer in peers], "there are no other brokers, or they have a proof"


def test_nothing_is_allowed_before_the_acls_were_read(clock: StillClock) -> None:
    for allow_without_acl in (False, True):
        authorizer = Authorizer(["User:boss"], allow_without_acl=allow_without_acl)
        rights = AllRights(authorizer, AuditLog(clock), None)
        peer = peer_of("User:ann")
        assert not context_of(rights, peer).is_allowed(READ, TOPIC, "t")
        assert not context_of(rights, peer).is_allowed_anywhere(READ, TOPIC)
        assert context_of(rights, peer_of("User:boss")).is_allowed(READ, TOPIC, "t")
        authorizer.mark_loaded()
        assert context_of(rights, peer).is_allowed(READ, TOPIC, "t") is allow_without_acl


def test_a_resource_that_cannot_be_read_denies_everything(authorizer: Authorizer, rights: AllRights) -> None:
    ann = peer_of("User:ann")
    assert context_of(rights, ann).is_allowed(READ, TOPIC, "t")
    authorizer.deny_resource(ResourcePattern(TOPIC, "t"))
    assert not context_of(rights, ann).is_allowed(READ, TOPIC, "t")
    assert context_of(rights, peer_of("User:boss")).is_allowed(READ, TOPIC, "t")


# -- the audit log ---------------------------------------------------------------------------------------------------


def pairs_of(line: str) -> dict[str, str]:
    return {key: json.loads(value) for key, value in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', line)}


def test_a_denial_is_one_line_with_who_what_and_why(rights: AllRights, caplog) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    context_of(rights, peer_of("User:ann", "10.0.0.7")).is_allowed(WRITE, TOPIC, "t")
    context_of(rights, peer_of("User:ann")).is_allowed(WRITE, TOPIC, "t", logs=False)
    (line,) = caplog.messages
    assert line.startswith("denied ")
    assert pairs_of(line) == {
        "principal": "User:ann",
        "host": "10.0.0.7",
        "listener": "PLAINTEXT",
        "api": "Produce",
        "operation": "Write",
        "resource": "Topic",
        "name": "t",
        "reason": "no ACL of the resource allows Write to User:ann from 10.0.0.7",
        "left_out": "0",
    }


def test_the_reason_names_the_acl_that_denies(authorizer: Authorizer, rights: AllRights, caplog) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    authorizer.replace_acls(ResourcePattern(TOPIC, "*"), [AclEntry("User:*", "*", Operation.ALL, Permission.DENY)])
    context_of(rights, peer_of("User:ann")).is_allowed(READ, TOPIC, "t")
    assert pairs_of(caplog.messages[0])["reason"] == ("denied by: Deny All for User:* from host * on Topic:LITERAL:*")


def test_names_cannot_break_a_line_or_make_it_long(rights: AllRights, caplog) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    forged = 'x" left_out="0"\ndenied principal="User:boss'
    context_of(rights, peer_of(f"User:{forged}")).is_allowed(WRITE, TOPIC, forged + "y" * 100_000 + "\ud800")
    (line,) = caplog.messages
    assert "\n" not in line
    assert line.isascii()
    assert len(line) < 8 * (TEXT_MAX + 100)
    assert pairs_of(line)["name"].startswith(forged)


def test_a_flood_of_denials_is_cut_and_counted(rights: AllRights, clock: StillClock, caplog) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    context = context_of(rights, peer_of("User:eve"))
    for _ in range(1000):
        context.is_allowed(WRITE, TOPIC, "t")
    assert len(caplog.messages) == LINES_OF_CONNECTION_PER_S
    clock.ns += 10**9
    context.is_allowed(WRITE, TOPIC, "t")
    assert pairs_of(caplog.messages[-1])["left_out"] == str(1000 - LINES_OF_CONNECTION_PER_S)


def test_a_flood_of_connections_is_cut_and_counted(rights: AllRights, clock: StillClock, caplog) -> None:
    caplog.set_level(logging.INFO, "ottla.audit")
    for _ in range(1000):
        peer = peer_of("User:eve")
        context_of(rights, peer).is_allowed(WRITE, TOPIC, "t")
        rights.on_gone(peer)
    assert len(caplog.messages) == LINES_PER_S
    clock.ns += 10**9
    last = peer_of("User:ann")
    rights.rights_of(last)
    rights.on_gone(last)
    assert caplog.messages[-1] == f'denied left_out="{1000 - LINES_PER_S}"'
