"""Sessions: their deadlines, their watches, and a restart of their host.

Zone: real.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.seams import Failure, Kind, Op, Session
from ottla.sim.machines.machine import Death
from ottla.sim.world import MS, SECOND
from ottla.znodes.local_session import LocalSession
from ottla.znodes.records import CorruptStore, decode_snapshot, encode_snapshot
from ottla.znodes.sessions import Deadlines, Grant, Watches, negotiate_timeout
from ottla.znodes.tree import Change, Event, EventKind, Tree, Verb

FIRST_FORMAT = bytes.fromhex(
    "00000000000000000000005effffffff02465d644a00000000000000000000000000000000000000000000ffffffffffffffffffffff"
    "ffffff0000000158000000014c0001000000000000000900000000000000020000000200000000000000030000000000000007000000"
    "000000000001000000b4ffffffff021fccaf9600000000000100000000000000000000000000000000ffffffffffffffffffffffffff"
    "ff000000027e000000022f70000000000000000100000000000000000000000000000000000000000000000300000000000000000000"
    "0000000000000000000000000000008201000002042f6172000000000000000000000000000000030000000000000003000000000000"
    "00030000000000000000000000000000000000000000000000037800"
)
"""A snapshot of the first format, without time-outs: sessions 3 and 7, the ephemeral node /a of 3."""


class Remote:
    """A client on a connection, as a server of the store keeps it."""

    def __init__(self) -> None:
        self.events = []
        self.told = []

    def on_changes(self, events):
        self.events += events

    def on_expired(self):
        self.told.append("expired")

    def on_displaced(self):
        self.told.append("displaced")


# -- the tables --------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "touch", "end", "due"]), st.integers(1, 4), st.integers(0, 30)), max_size=60
    )
)
def test_deadlines_equal_a_simple_model(steps):
    deadlines, model, timeouts = Deadlines(), {}, {}
    now = 0
    for verb, session, number in steps:
        now += number * MS
        if verb == "begin" and session not in timeouts:
            timeouts[session] = number
            deadlines.begin_session(session, number, now)
            if number:
                model[session] = now + number * MS
        elif verb == "touch":
            deadlines.touch_session(session, now)
            if session in model:
                model[session] = now + timeouts[session] * MS
        elif verb == "end":
            deadlines.end_session(session)
            model.pop(session, None)
        due = sorted((end, session) for session, end in model.items() if end <= now)
        assert deadlines.due_sessions(now) == [session for _, session in due]
        if model:
            assert deadlines.next_ns <= min(model.values())
        else:
            assert deadlines.next_ns is None


def test_next_deadline_advances_for_a_touched_session():
    deadlines = Deadlines()
    deadlines.begin_session(1, 10, 0)
    deadlines.touch_session(1, 5 * MS)
    assert deadlines.next_ns == 10 * MS
    assert deadlines.due_sessions(10 * MS) == []
    assert deadlines.next_ns == 15 * MS


def test_a_negotiated_timeout_is_within_bounds():
    assert [negotiate_timeout(asked, 1000, 60_000) for asked in (1, 1000, 18_000, 90_000)] == [
        1000,
        1000,
        18_000,
        60_000,
    ]


def test_a_grant_survives_the_journal():
    for grant in (Grant(), Grant(18_000, bytes(range(16)))):
        assert Grant.unpack_grant(grant.pack_grant()) == grant
    assert Grant.unpack_grant(b"") == Grant()


def test_a_deletion_fires_both_watches_of_a_node_as_one_event():
    watches = Watches()
    watches.data["/a"] = watches.children["/a"] = watches.children["/"] = None
    tree = Tree()
    tree.apply([Change(Verb.CREATE, "/a")], 1, 0)
    fired = watches.fire_watches(tree.apply([Change(Verb.DELETE, "/a")], 2, 0))
    assert fired == [Event("/a", False, EventKind.DELETED), Event("/", True, EventKind.CHILD)]
    assert not watches.data
    assert not watches.children


def test_a_snapshot_of_the_first_format_is_read():
    tree = Tree()
    tree.apply([Change(Verb.OPEN, "", Grant(5).pack_grant(), 3), Change(Verb.CREATE, "/a", b"x", 3)], 3, 0)
    again, _ = decode_snapshot(memoryview(encode_snapshot(tree, 5)))
    assert again.grants == tree.grants
    assert again.ephemerals == tree.ephemerals
    old = FIRST_FORMAT
    again, next_zxid = decode_snapshot(memoryview(old))
    assert (next_zxid, again.grants, again.ephemerals) == (9, {3: b"", 7: b""}, {3: {"/a": None}, 7: {}})
    for cut in range(1, len(old)):
        with pytest.raises(CorruptStore):
            decode_snapshot(memoryview(old[:cut]))


# -- the store ---------------------------------------------------------------------------------------------------------


def test_a_silent_session_expires_with_its_nodes(home):
    told = []
    session = LocalSession(home.engine, told.append, lambda state, _: told.append(state)).begin_session(timeout_ms=2000)
    box = []
    session.submit_ops("x", [Op("create", "/ids"), Op("ephemeral", "/ids/1")], box.append)
    home.shell.effects.drain_effects()
    home.timeline.run_until(home.timeline.now_ns + SECOND)
    home.get("/ids/1", watch=True)  # ten seconds pass
    assert box == [[("/ids", 0), ("/ids/1", 0)]]
    assert home.engine.next_expiry_ns < home.timeline.now_ns
    home.told.clear()
    home.process.run_turn(home.engine.expire_due)
    home.settle()
    assert told == [Session.OPEN, Session.EXPIRED]
    assert home.told == [("node", "/ids/1")]
    assert home.get("/ids/1") is None
    assert home.engine.next_expiry_ns is None
    session.submit_ops("x", [Op("create", "/b")], box.append)
    session.get_node("/ids", False, box.append)
    home.settle()
    assert [failure.kind for failure in box[1:]] == [Kind.EXPIRED, Kind.EXPIRED]


def test_touching_keeps_a_session(home):
    told = []
    session = LocalSession(home.engine, told.append, lambda state, _: told.append(state)).begin_session(timeout_ms=2000)
    home.shell.effects.drain_effects()
    acts = [
        session.touch_session,
        lambda: session.get_node("/", False, lambda _: None),
        lambda: session.submit_ops("x", [Op("check", "/")], lambda _: None),
        lambda: session.get_children("/", False, lambda _: None),
    ]
    for act in acts:
        home.timeline.run_until(home.timeline.now_ns + 1900 * MS)
        home.process.run_turn(home.engine.expire_due)
        home.process.run_turn(act)
        home.shell.effects.drain_effects()
    assert told == [Session.OPEN]


def test_kept_sessions_outlive_their_host(home):
    remote = Remote()
    session = home.engine.open_session(remote, Grant(4000, b"secret"))
    home.engine.commit_ops([Op("ephemeral", "/me")], session)
    home.settle()
    home.keep_sessions = True
    home.restart(Death.KILL)
    assert home.get("/me").owner == session
    home.process.run_turn(home.engine.expire_due)
    home.settle()
    assert home.get("/me") is None, "from the restart on it has its whole time, and no more"


def test_a_host_that_does_not_keep_sessions_ends_them(home):
    session = home.engine.open_session(Remote(), Grant(4000, b"secret"))
    home.engine.commit_ops([Op("ephemeral", "/me")], session)
    home.settle()
    home.restart()
    assert home.get("/me") is None
    assert home.engine.resume_session(session, b"secret", Remote()) is None


@pytest.mark.parametrize("snapshot_bytes", [200, 1 << 22])
def test_a_client_resumes_with_its_password(make_home, snapshot_bytes):
    home = make_home(snapshot_bytes=snapshot_bytes)
    home.keep_sessions = True
    session = home.engine.open_session(Remote(), Grant(3_600_000, b"secret"))
    home.engine.commit_ops([Op("ephemeral", "/me")], session)
    for number in range(10):
        home.submit(Op("create", f"/{number}", bytes(50)))
    home.restart()
    engine, first, second = home.engine, Remote(), Remote()
    assert engine.resume_session(session, b"guessed", first) is None
    assert engine.resume_session(session + 1, b"secret", first) is None
    assert engine.resume_session(session, b"secret", first) == Grant(3_600_000, b"secret")
    assert engine.resume_session(session, b"secret", second) == Grant(3_600_000, b"secret")
    assert first.told == ["displaced"]
    engine.leave_session(session, first)
    home.submit(Op("delete", "/me"))
    assert not first.events
    assert [event.path for event in second.events] == ["/me", "/me", "/"]


def test_a_process_session_cannot_be_resumed(home):
    assert home.engine.resume_session(home.store.id, b"", Remote()) is None


def test_the_session_of_a_dead_process_expires_at_once(home):
    remote = Remote()
    session = home.engine.open_session(remote, Grant(18_000, b"secret"))
    home.engine.commit_ops([Op("ephemeral", "/me")], session)
    home.engine.expire_session(session)
    home.engine.expire_session(session)
    home.settle()
    assert home.get("/me") is None
    assert remote.told == ["expired"]


def test_a_full_disk_delays_the_expiry_of_a_session(home, caplog):
    remote = Remote()
    session = home.engine.open_session(remote, Grant(2000, b"secret"))
    home.settle()
    home.drive.capacity = home.drive.used_bytes()
    home.process.run_turn(home.engine.expire_due)
    home.settle()
    assert "could not expire session" in caplog.text
    assert remote.told == []
    home.drive.capacity = 1 << 40
    home.process.run_turn(home.engine.expire_due)
    home.settle()
    assert remote.told == ["expired"]
    with pytest.raises(Failure) as failure:
        home.engine.commit_ops([Op("create", "/a")], session)
    assert failure.value.kind is Kind.EXPIRED


def test_a_watch_on_children_of_an_absent_node_fires_when_it_is_created(home):
    assert home.children("/a", watch=True) == []
    home.told.clear()
    home.submit(Op("create", "/a"))
    assert home.told == [("node", "/a")]


def test_nodes_may_be_ephemeral_and_sequential(home):
    home.submit(Op("create", "/election"))
    ((path, _),) = home.submit(Op("ephemeral_sequential", "/election/n-"))
    assert path == "/election/n-0000000000"
    assert home.get(path).owner == home.store.id
