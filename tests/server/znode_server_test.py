"""The embedded store over ZooKeeper's protocol: messages by hand, four-letter commands, and bytes that no client sends.

Zone: real.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time

import pytest
from kazoo.exceptions import (
    InvalidACLError,
    UnimplementedError,
)
from kazoo.security import make_digest_acl
from tests.server.served import HOST

from ottla.seams import Failure
from ottla.server.zookeeper.jute import write_fields
from ottla.server.zookeeper.records import (
    OPEN_ACL,
    Auth,
    Create,
    Multi,
    Nothing,
    OpCode,
    Path,
    PathKind,
    PathVersion,
    PathWatch,
    SetData,
    SetWatches,
    ZkError,
    encode_request,
)
from ottla.server.zookeeper.znode_server import ZnodeServer

# -- messages by hand --------------------------------------------------------------------------------------------------


def test_a_session_is_taken_up_again_with_its_password(served):
    first = served.raw()
    granted, session, password = first.connect()
    assert first.ask(OpCode.CREATE, Create("/e", b"", OPEN_ACL, 1))[0] == 0
    first.close()
    second = served.raw()
    assert second.connect(session=session, password=password) == (granted, session, password)
    assert second.ask(OpCode.EXISTS, PathWatch("/e", False))[0] == 0
    assert second.ask(OpCode.GET_EPHEMERALS, Path("/"))[1] == write_fields("T", (["/e"],))


def test_a_session_is_not_given_to_whoever_does_not_know_its_password(served):
    _, session, _ = served.raw().connect()
    thief = served.raw()
    assert thief.connect(session=session, password=b"wrong password!!") == (0, 0, bytes(16))
    assert thief.ended
    assert served.raw().connect(session=99)[:2] == (0, 0)


def test_who_takes_a_session_up_ends_the_other_connection(served):
    first = served.raw()
    _, session, password = first.connect()
    assert served.raw().connect(session=session, password=password)[1] == session
    assert first.ended


def test_time_outs_are_kept_within_the_limits(served):
    assert served.raw().connect(timeout_ms=1)[0] == 1_000
    assert served.raw().connect(timeout_ms=2**31 - 1)[0] == 60_000


def test_watches_that_are_renewed_tell_what_was_missed(served):
    raw = served.raw()
    raw.connect()
    for path in ("/changed", "/same", "/parent", "/quiet", "/there"):
        raw.ask(OpCode.CREATE, Create(path, b"", OPEN_ACL, 0))
    zxid = served.ask(lambda server: server.store.last_zxid)
    raw.ask(OpCode.SET_DATA, SetData("/changed", b"new", -1))
    raw.ask(OpCode.CREATE, Create("/parent/child", b"", OPEN_ACL, 0))
    other = served.raw()
    other.connect()
    data, exist, child = ["/changed", "/same", "/gone"], ["/there", "/not yet"], ["/parent", "/quiet", "/gone too"]
    other.send(encode_request(-8, OpCode.SET_WATCHES, SetWatches(zxid, data, exist, child)))
    assert [other.notice() for _ in range(5)] == [
        (3, "/changed"),
        (2, "/gone"),
        (1, "/there"),
        (4, "/parent"),
        (2, "/gone too"),
    ]
    assert struct.unpack(">iqi", other.receive())[::2] == (-8, 0)
    raw.ask(OpCode.DELETE, PathVersion("/same", -1))
    raw.ask(OpCode.CREATE, Create("/not yet", b"", OPEN_ACL, 0))
    raw.ask(OpCode.CREATE, Create("/quiet/child", b"", OPEN_ACL, 0))
    assert [other.notice() for _ in range(3)] == [(2, "/same"), (1, "/not yet"), (4, "/quiet")]


def test_watches_are_taken_back(served):
    raw = served.raw()
    raw.connect()
    raw.ask(OpCode.EXISTS, PathWatch("/a", True))
    assert raw.ask(OpCode.CHECK_WATCHES, PathKind("/a", 2))[0] == ZkError.OK
    assert raw.ask(OpCode.CHECK_WATCHES, PathKind("/a", 1))[0] == ZkError.NO_WATCHER
    assert raw.ask(OpCode.REMOVE_WATCHES, PathKind("/a", 3))[0] == ZkError.OK
    assert raw.ask(OpCode.REMOVE_WATCHES, PathKind("/a", 3))[0] == ZkError.NO_WATCHER
    raw.send(encode_request(50, OpCode.CREATE, Create("/a", b"", OPEN_ACL, 0)))
    assert struct.unpack_from(">i", raw.receive()) == (50,)


def test_a_watch_is_told_before_the_answer_that_shows_its_change(served):
    raw = served.raw()
    raw.connect()
    raw.ask(OpCode.EXISTS, PathWatch("/a", True))
    raw.send(encode_request(60, OpCode.CREATE, Create("/a", b"", OPEN_ACL, 0)))
    assert raw.notice() == (1, "/a")
    assert struct.unpack_from(">i", raw.receive()) == (60,)


@pytest.mark.parametrize(
    ("op", "record", "error"),
    [
        (OpCode.CREATE_CONTAINER, Create("/c", b"", OPEN_ACL, 4), ZkError.UNIMPLEMENTED),
        (OpCode.CREATE, Create("/c", b"", OPEN_ACL, 5), ZkError.UNIMPLEMENTED),
        (OpCode.CREATE, Create("/c", b"", OPEN_ACL, 77), ZkError.BAD_ARGUMENTS),
        (OpCode.CREATE, Create("/c", b"", [], 0), ZkError.INVALID_ACL),
        (OpCode.CREATE, Create("no slash", b"", OPEN_ACL, 0), ZkError.BAD_ARGUMENTS),
        (OpCode.GET_DATA, PathWatch("/a/", False), ZkError.BAD_ARGUMENTS),
        (OpCode.ADD_WATCH, PathKind("/", 0), ZkError.UNIMPLEMENTED),
        (OpCode.CHECK, PathVersion("/", 0), ZkError.OK),
        (OpCode.CHECK, PathVersion("/", 3), ZkError.BAD_VERSION),
        (OpCode.AUTH, Auth(0, "digest", b"me:pass"), ZkError.OK),
        (OpCode.AUTH, Auth(0, "x509", b""), ZkError.AUTH_FAILED),
        (OpCode.GET_ACL, Path("/none"), ZkError.NO_NODE),
        (OpCode.WHO_AM_I, Nothing(), ZkError.OK),
        (OpCode.GET_ALL_CHILDREN_NUMBER, Path("/"), ZkError.OK),
        (OpCode.PING, Nothing(), ZkError.OK),
    ],
)
def test_requests_and_their_error_numbers(served, op, record, error):
    raw = served.raw()
    raw.connect()
    assert raw.ask(op, record)[0] == error


def test_an_operation_that_no_server_knows_is_answered(served):
    raw = served.raw()
    raw.connect()
    raw.send(struct.pack(">ii", 5, 4711) + b"whatever")
    assert struct.unpack(">iqi", raw.receive())[::2] == (5, ZkError.UNIMPLEMENTED)


def test_the_open_acl_is_told_and_may_be_set(served):
    client = served.kazoo()
    client.create("/a")
    acl, stat = client.get_acls("/a")
    assert [(one.perms, one.id.scheme, one.id.id) for one in acl] == [(31, "world", "anyone")]
    assert client.set_acls("/a", acl).version == stat.version
    with pytest.raises(InvalidACLError):
        client.set_acls("/a", [make_digest_acl("me", "pass", all=True)])
    with pytest.raises(UnimplementedError):
        client.reconfig("server.1=x:1:1;2181", None, None)


def test_a_multi_of_reads_answers_each_for_itself(served):
    raw = served.raw()
    raw.connect()
    parts = [(OpCode.GET_CHILDREN, PathWatch("/", False)), (OpCode.GET_DATA, PathWatch("/none", False))]
    error, answer = raw.ask(OpCode.MULTI_READ, Multi(parts))
    assert error == ZkError.OK
    none = struct.pack(">i?i", -1, False, ZkError.NO_NODE) + struct.pack(">i", ZkError.NO_NODE)
    end = struct.pack(">i?i", -1, True, -1)
    assert answer == struct.pack(">i?i", 8, False, 0) + write_fields("T", ([],)) + none + end


# -- words -------------------------------------------------------------------------------------------------------------


def test_words_of_four_letters(served):
    client = served.kazoo()
    client.create("/a", b"12345")
    client.exists("/b", watch=print)
    assert served.word(b"ruok") == "imok"
    assert "Mode: standalone\nNode count: 2\n" in served.word(b"srvr")
    assert "Clients:\n /127.0.0.1:" in served.word(b"stat")
    rows = dict(line.split("\t") for line in served.word(b"mntr").splitlines())
    assert (rows["zk_znode_count"], rows["zk_watch_count"], rows["zk_server_state"]) == ("2", "1", "standalone")
    assert f"clientPort={served.server.port}\n" in served.word(b"conf")
    assert served.word(b"kill") == "kill is not executed because it is not in the whitelist.\n"


# -- hostile -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack(">i", -5), "a message of -5 bytes"),
        (struct.pack(">i", 2**31 - 1), "a message of 2147483647 bytes"),
        (struct.pack(">i", 5_000), "a message of 5000 bytes"),
        (struct.pack(">i", 3) + b"abc", "not understood"),
    ],
)
def test_a_first_message_of_nonsense_costs_the_connection_and_one_line(served, caplog, data, why):
    raw = served.raw()
    raw.sock.sendall(data)
    assert raw.ended
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert why in lines[0]


@pytest.mark.parametrize("message", [b"", b"\0" * 7, struct.pack(">iii", 1, OpCode.GET_DATA, 2**31 - 1), b"\xff" * 40])
def test_a_later_message_of_nonsense_costs_the_connection_and_one_line(served, caplog, message):
    raw = served.raw()
    raw.connect()
    if message == b"\xff" * 40:
        message = struct.pack(">iii", 1, OpCode.DELETE, 4) + b"\xff" * 8  # not UTF-8
    raw.send(message)
    assert raw.ended
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["not understood" in line for line in lines] == [True]
    assert served.word(b"ruok") == "imok"


def test_a_client_that_only_asks_is_not_read_further(served):
    raw = served.raw()
    raw.connect()
    asked = 5_000
    burst = encode_request(1, OpCode.GET_CHILDREN, PathWatch("/", False))
    raw.sock.sendall((struct.pack(">i", len(burst)) + burst) * asked)
    for _ in range(asked):
        assert struct.unpack_from(">i", raw.receive()) == (1,)


def test_a_client_that_reads_nothing_is_closed_before_its_answers_fill_the_memory(make_served, caplog):
    served = make_served(owed=1 << 20)
    raw = served.raw()
    raw.connect()
    raw.ask(OpCode.CREATE, Create("/big", b"x" * 900_000, OPEN_ACL, 0))
    ask = encode_request(1, OpCode.GET_DATA, PathWatch("/big", False))
    raw.sock.sendall((struct.pack(">i", len(ask)) + ask) * 50)
    end = time.monotonic() + 180
    while "left unread" not in caplog.text and time.monotonic() < end:
        served.ask(lambda server: len(server.connections))
    assert "left unread" in caplog.text


def test_watches_have_a_bound(make_served):
    raw = make_served(watches=3).raw()
    raw.connect()
    for n in range(4):
        raw.send(encode_request(n, OpCode.EXISTS, PathWatch(f"/{n}", True)))
    answers = list(iter(raw.receive, None))
    assert len(answers) == 3


def test_connections_have_a_bound(make_served):
    served = make_served(connections=2)
    for _ in range(2):
        served.raw().connect()
    assert served.raw().ended


# -- a store that requires credentials ---------------------------------------------------------------------------------

DIGEST = b"ottla:secret"


def test_without_credentials_nothing_is_read_or_written(make_served):
    served = make_served(digest=DIGEST)
    broker = served.kazoo(auth_data=[("digest", "ottla:secret")])
    broker.create("/a", b"1")
    raw = served.raw()
    raw.connect()
    records = {
        OpCode.GET_DATA: PathWatch("/a", True),
        OpCode.EXISTS: PathWatch("/b", True),
        OpCode.GET_CHILDREN: PathWatch("/", False),
        OpCode.CREATE: Create("/c", b"", OPEN_ACL, 1),
        OpCode.DELETE: PathVersion("/a", -1),
        OpCode.SET_DATA: SetData("/a", b"2", -1),
        OpCode.MULTI: Multi([(OpCode.DELETE, PathVersion("/a", -1))]),
        OpCode.SYNC: Path("/"),
        OpCode.SET_WATCHES: SetWatches(0, ["/a"], [], []),
        OpCode.WHO_AM_I: Nothing(),
    }
    for op, record in records.items():
        assert raw.ask(op, record) == (ZkError.NO_AUTH, b""), op
    assert raw.ask(OpCode.PING, Nothing())[0] == ZkError.OK
    assert broker.get("/a")[0] == b"1"
    assert broker.get_children("/") == ["a"]
    assert served.ask(lambda server: sum(client.client.watch_count for client in server.connections)) == 0


def test_credentials_open_the_store_to_their_connection_only(make_served):
    served = make_served(digest=DIGEST)
    raw, other = served.raw(), served.raw()
    for each in (raw, other):
        each.connect()
    assert raw.ask(OpCode.AUTH, Auth(0, "digest", b"ottla:secret"))[0] == ZkError.OK
    assert raw.ask(OpCode.EXISTS, PathWatch("/", False))[0] == ZkError.OK
    assert other.ask(OpCode.EXISTS, PathWatch("/", False))[0] == ZkError.NO_AUTH


@pytest.mark.parametrize(
    ("scheme", "shown"), [("digest", b"ottla:other"), ("digest", b""), ("digest", None), ("world", b"ottla:secret")]
)
def test_other_credentials_cost_the_connection(make_served, scheme, shown, caplog):
    raw = make_served(digest=DIGEST).raw()
    raw.connect()
    assert raw.ask(OpCode.AUTH, Auth(0, scheme, shown))[0] == ZkError.AUTH_FAILED
    assert raw.ended
    assert "other credentials" in caplog.text


def test_a_session_that_is_taken_up_shows_the_credentials_again(make_served):
    served = make_served(digest=DIGEST)
    raw, thief = served.raw(), served.raw()
    _, session, password = raw.connect()
    assert raw.ask(OpCode.AUTH, Auth(0, "digest", b"ottla:secret"))[0] == ZkError.OK
    thief.connect(session=session, password=password)
    assert thief.ask(OpCode.EXISTS, PathWatch("/", False))[0] == ZkError.NO_AUTH


def test_a_large_message_before_the_credentials_costs_the_connection(make_served, caplog):
    raw = make_served(digest=DIGEST).raw()
    raw.connect()
    raw.sock.sendall(struct.pack(">i", 5_000))
    assert raw.ended
    assert "a message of 5000 bytes" in caplog.text


def test_connections_without_credentials_make_room_for_others(make_served):
    served = make_served(digest=DIGEST, strangers=2)
    first, second = served.raw(), served.raw()
    for each in (first, second):
        each.connect()
    broker = served.kazoo(auth_data=[("digest", "ottla:secret")])
    assert broker.get_children("/") == []
    assert first.ended
    assert second.ask(OpCode.PING, Nothing())[0] == ZkError.OK


def test_a_connection_that_shows_no_credentials_is_closed_after_a_while(make_served):
    raw = make_served(digest=DIGEST, authenticate_s=0.05).raw()
    raw.connect()
    assert raw.ended


def test_words_tell_numbers_only_where_credentials_are_asked_for(make_served):
    served = make_served(digest=DIGEST)
    assert served.word(b"ruok") == "imok"
    assert "zk_znode_count\t1\n" in served.word(b"mntr")
    for word in (b"conf", b"stat"):
        assert "not executed" in served.word(word)


def test_a_port_that_is_taken_is_named(served, tmp_path):
    loop = asyncio.new_event_loop()
    other = ZnodeServer(loop, str(tmp_path / "other"))
    with pytest.raises(Failure, match=f"{HOST}:{served.server.port}"):
        loop.run_until_complete(other.start_listening(HOST, served.server.port))
    other.turns.stop_threads()
    loop.close()
