"""The embedded store over ZooKeeper's protocol, with kazoo: an independent client.

Zone: real.
"""

from __future__ import annotations

import errno
import os
import threading

import pytest
from kazoo.client import KazooState
from kazoo.exceptions import (
    BadArgumentsError,
    BadVersionError,
    InvalidACLError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import make_digest_acl

from ottla.seams import Failure
from ottla.server.zookeeper.records import (
    OPEN_ACL,
    Create,
    OpCode,
    encode_request,
)


def test_kazoo_writes_and_reads(served):
    client = served.kazoo()
    assert client.create("/a", b"one") == "/a"
    data, stat = client.get("/a")
    assert (data, stat.version, stat.dataLength, stat.ephemeralOwner) == (b"one", 0, 3, 0)
    assert client.set("/a", b"two", version=0).version == 1
    path, stat = client.create("/a/b", b"", include_data=True)
    assert (path, stat.version, stat.czxid) == ("/a/b", 0, stat.mzxid)
    assert client.get_children("/a") == ["b"]
    names, stat = client.get_children("/a", include_data=True)
    assert (names, stat.numChildren, stat.cversion) == (["b"], 1, 1)
    assert client.exists("/none") is None
    assert client.exists("/a").children_count == 1
    client.delete("/a", recursive=True)
    assert client.get_children("/") == []
    assert client.sync("/") == "/"


def test_kazoo_is_told_what_went_wrong(served):
    client = served.kazoo()
    client.create("/a/b", b"", makepath=True)
    client.create("/e", b"", ephemeral=True)
    with pytest.raises(NodeExistsError):
        client.create("/a")
    with pytest.raises(NoNodeError):
        client.create("/x/y")
    with pytest.raises(NoNodeError):
        client.get("/x")
    with pytest.raises(NotEmptyError):
        client.delete("/a")
    with pytest.raises(BadVersionError):
        client.set("/a", b"", version=5)
    with pytest.raises(NoChildrenForEphemeralsError):
        client.create("/e/f")
    with pytest.raises(BadArgumentsError):
        client.delete("/")
    with pytest.raises(BadArgumentsError):
        client.create("/big", bytes(1 << 20))
    with pytest.raises(InvalidACLError):
        client.create("/secret", b"", acl=[make_digest_acl("me", "pass", all=True)])


def test_sequential_nodes_of_both_kinds_are_numbered_by_their_parent(served):
    client = served.kazoo()
    client.create("/q")
    assert client.create("/q/n-", sequence=True) == "/q/n-0000000000"
    assert client.create("/q/n-", sequence=True, ephemeral=True) == "/q/n-0000000001"
    assert client.get("/q/n-0000000001")[1].owner_session_id == client.client_id[0]


def test_a_transaction_of_kazoo_happens_or_does_not(served):
    client = served.kazoo()
    client.create("/a", b"")
    good = client.transaction()
    good.check("/a", 0)
    good.set_data("/a", b"new")
    good.create("/a/b", b"")
    good.delete("/a/b")
    results = good.commit()
    assert (results[0], results[1].version, results[2:]) == (True, 1, ["/a/b", True])
    bad = client.transaction()
    bad.create("/c", b"")
    bad.check("/a", 7)
    bad.delete("/a")
    assert [type(result) for result in bad.commit()] == [RolledBackError, BadVersionError, RuntimeInconsistency]
    assert client.get("/a")[0] == b"new"
    assert client.exists("/c") is None


def test_watches_of_kazoo_are_told_once_each(served):
    watcher, writer = served.kazoo(), served.kazoo()
    told: list[tuple[str, str]] = []
    done = threading.Event()

    def note(event):
        told.append((event.type, event.path))
        if event.path == "/last":
            done.set()

    writer.create("/a", b"")
    watcher.get("/a", watch=note)
    watcher.get_children("/a", watch=note)
    watcher.exists("/later", watch=note)
    watcher.exists("/last", watch=note)
    writer.set("/a", b"1")
    writer.set("/a", b"2")
    writer.create("/a/b")
    writer.create("/a/c")
    writer.create("/later")
    writer.create("/last")
    assert done.wait(180)
    assert told == [("CHANGED", "/a"), ("CHILD", "/a"), ("CREATED", "/later"), ("CREATED", "/last")]


def test_what_a_session_owns_goes_with_it(served):
    first, second = served.kazoo(), served.kazoo()
    first.create("/e", b"", ephemeral=True)
    gone = threading.Event()
    second.exists("/e", watch=lambda event: gone.set())
    first.stop()
    assert gone.wait(180)
    assert second.exists("/e") is None


def test_a_lock_of_kazoo_goes_from_one_to_the_other(served):
    first, second = served.kazoo(), served.kazoo()
    held, waiting = first.Lock("/lock", "first"), second.Lock("/lock", "second")
    held.acquire(timeout=180)
    assert not waiting.acquire(blocking=False)
    held.release()
    assert waiting.acquire(timeout=180)


def test_the_host_ends_the_session_of_a_dead_process_at_once(served):
    victim, other = served.kazoo(), served.kazoo()
    victim.create("/e", b"", ephemeral=True)
    gone, lost = threading.Event(), threading.Event()
    other.exists("/e", watch=lambda event: gone.set())
    victim.add_listener(lambda state: lost.set() if state == KazooState.LOST else None)
    session = victim.client_id[0]
    served.ask(lambda server: server.expire_session(session))
    assert gone.wait(180)
    assert lost.wait(180)


@pytest.mark.slow
def test_a_session_that_is_silent_is_over(make_served):
    served = make_served(least_timeout_ms=300)
    silent, other = served.raw(), served.kazoo()
    assert silent.connect(timeout_ms=1)[0] == 300
    assert silent.ask(OpCode.CREATE, Create("/e", b"", OPEN_ACL, 1))[0] == 0
    gone = threading.Event()
    other.exists("/e", watch=lambda event: gone.set())
    assert gone.wait(180)
    assert silent.ended


def test_what_was_written_outlives_the_process_and_its_sessions_do_not(make_served):
    before = make_served()
    raw = before.raw()
    _, session, password = raw.connect()
    raw.ask(OpCode.CREATE, Create("/kept", b"data", OPEN_ACL, 0))
    raw.ask(OpCode.CREATE, Create("/e", b"", OPEN_ACL, 1))
    before.stop()
    after = make_served()
    again = after.kazoo()
    assert again.get("/kept")[0] == b"data"
    assert again.exists("/e") is None
    assert after.raw().connect(session=session, password=password)[:2] == (0, 0)


@pytest.mark.slow
def test_many_writers_share_the_syncs_of_the_journal(served, monkeypatch):
    syncs: list[int] = []

    def counted(fd: int) -> None:
        syncs.append(fd)
        os.fdatasync(fd)

    clients = [served.kazoo() for _ in range(4)]
    monkeypatch.setattr("ottla.server.disks.file._fdatasync", counted)
    results = [client.create_async(f"/n{n}-{i}", b"x" * 100) for i in range(100) for n, client in enumerate(clients)]
    assert all(result.get(180) for result in results)
    assert 0 < len(syncs) < 300


def test_a_disk_that_fails_ends_all_sessions_and_the_host_is_told(served, monkeypatch):
    raw = served.raw()
    raw.connect()
    failed = threading.Event()
    served.server.on_failed = failed.set

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("ottla.server.disks.file._fdatasync", broken)
    raw.send(encode_request(1, OpCode.CREATE, Create("/a", b"", OPEN_ACL, 0)))
    assert raw.ended
    assert failed.wait(180)
    with pytest.raises(Failure, match="log failed"):
        served.stop()
