"""The laws of MetadataStore and of its inputs, for every engine.

Zone: real. `rig` is each engine, `wired` each one with connections that can break; what only a ZooKeeper client meets
stands in zookeeper_test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.stores import TIMEOUT_MS, EmbeddedRig, Rig, ServedRig, SimRig, ZooKeeperRig

from ottla.seams import Failure, Kind, Node, Op, Session

OPEN, SUSPENDED, EXPIRED = Session.OPEN, Session.SUSPENDED, Session.EXPIRED
ENGINES = {"embedded": EmbeddedRig, "served": ServedRig, "sim": SimRig, "zookeeper": ZooKeeperRig}


def engines(*names: str) -> list:
    """Parameters, with the marks that an engine of the real world needs."""
    marks = {"zookeeper": [pytest.mark.interop, pytest.mark.slow], "served": [pytest.mark.slow]}
    return [pytest.param(name, marks=marks.get(name, [])) for name in names]


def made(request: pytest.FixtureRequest, directory: Path) -> Iterator[Rig]:
    given = request.getfixturevalue("zookeeper") if request.param == "zookeeper" else directory
    rig = ENGINES[request.param](given)
    yield rig
    rig.close()


@pytest.fixture(params=engines("embedded", "served", "sim", "zookeeper"))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """One store."""
    yield from made(request, tmp_path)


@pytest.fixture(params=engines("served", "sim", "zookeeper"))
def wired(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """One store whose clients have connections."""
    yield from made(request, tmp_path)


def kind_of(ask) -> Kind:
    with pytest.raises(Failure) as caught:
        ask()
    return caught.value.kind


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_a_multi_answers_with_path_and_version_of_each_operation(rig):
    one = rig.client()
    assert one.submit(Op("create", "/a", b"1"), Op("put", "/a", b"2"), Op("create", "/a/b")) == [
        ("/a", 0),
        ("/a", 1),
        ("/a/b", 0),
    ]
    assert one.submit(Op("check", "/a", version=1), Op("delete", "/a/b")) == [("/a", 1), ("/a/b", -1)]
    assert one.submit(Op("check", "/a")) == [("/a", -1)]
    node = one.get("/a")
    assert (node.data, node.version, node.owner) == (b"2", 1, 0)
    assert one.get("/nowhere") is None
    assert one.children("/") == (["a", "zookeeper"] if "zookeeper" in one.children("/") else ["a"])
    assert one.children("/nowhere") == []


@pytest.mark.parametrize(
    "refused",
    [
        Op("create", "/a"),
        Op("create", "/x/y"),
        Op("put", "/a", b"x", 7),
        Op("put", "/x", b"x"),
        Op("delete", "/a"),
        Op("delete", "/a/b", version=3),
        Op("delete", "/x"),
        Op("check", "/a", version=9),
        Op("check", "/x"),
        Op("create", "/a/e/child"),
    ],
)
def test_a_condition_that_does_not_hold_is_a_conflict_and_changes_nothing(rig, refused):
    one = rig.client()
    one.submit(Op("create", "/a"), Op("create", "/a/b"), Op("ephemeral", "/a/e"))
    before = one.get("/a")
    for ops in ([refused], [Op("put", "/a", b"2"), Op("create", "/new"), refused]):
        assert kind_of(lambda ops=ops: one.submit(*ops)) is Kind.CONFLICT
    assert one.get("/a") == before
    assert one.get("/new") is None


def test_what_no_store_takes_is_not_done(rig):
    one = rig.client()
    for path in ("a", "/a/", "/a//b", "/a/../b", "/a\0b"):
        assert kind_of(lambda path=path: one.submit(Op("create", path))) is Kind.NOT_DONE
    assert kind_of(lambda: one.submit(Op("create", "/a", bytes(1 << 20)))) is Kind.NOT_DONE
    many = [Op("create", f"/{number}", bytes(2000)) for number in range(520)]
    assert kind_of(lambda: one.submit(*many)) is Kind.NOT_DONE
    assert len(one.submit(*many[:500])) == 500
    assert one.states == [OPEN], "the connection was lost over it"


def test_sequential_names_go_up(rig):
    one = rig.client()
    one.submit(Op("create", "/q"))
    ((first, _),) = one.submit(Op("sequential", "/q/n-", b"1"))
    (second, _), (third, _) = one.submit(Op("sequential", "/q/n-"), Op("ephemeral_sequential", "/q/n-"))
    assert [path.startswith("/q/n-") and len(path) == 15 for path in (first, second, third)] == [True] * 3
    assert first < second < third
    assert one.get(first).data == b"1"
    assert [one.get(path).owner for path in (first, second, third)] == [0, 0, one.sessions[-1]]


def test_czxid_grows_with_every_creation(rig):
    one = rig.client()
    one.submit(Op("create", "/a"))
    first = one.get("/a").czxid
    one.submit(Op("put", "/a", b"x"))
    assert one.get("/a").czxid == first
    one.submit(Op("delete", "/a"))
    one.submit(Op("create", "/a"))
    assert one.get("/a").czxid > first


# -- lanes and order ---------------------------------------------------------------------------------------------------


def test_a_failure_takes_its_lane_along(rig):
    one = rig.client()
    outcomes = [
        one.begin("submit_ops", "x", [Op("create", "/a/b")]),
        one.begin("submit_ops", "x", [Op("create", "/c")]),
        one.begin("submit_ops", "x", [Op("create", "/d")]),
        one.begin("submit_ops", "y", [Op("create", "/e")]),
    ]
    rig.until(lambda: all(outcomes))
    assert [outcome[0].kind for outcome in outcomes[:3]] == [Kind.CONFLICT, Kind.NOT_DONE, Kind.NOT_DONE]
    assert outcomes[3] == [[("/e", 0)]]
    assert one.get("/c") is None
    assert one.submit(Op("create", "/c"), lane="x") == [("/c", 0)]


def test_a_lane_keeps_its_order(rig):
    one = rig.client()
    told = []
    for number in range(30):
        one.store.submit_ops(
            f"lane {number % 2}", [Op("create", f"/{number}")], lambda _, number=number: told.append(number)
        )
    rig.until(lambda: len(told) == 30)
    for lane in (0, 1):
        assert [number for number in told if number % 2 == lane] == list(range(lane, 30, 2))
        czxids = [one.get(f"/{number}").czxid for number in range(lane, 30, 2)]
        assert czxids == sorted(czxids)


def test_what_a_completion_submits_comes_after_what_waited(rig):
    one = rig.client()
    told = []

    def first_done(_) -> None:
        told.append(1)
        one.store.submit_ops("x", [Op("create", "/3")], lambda _: told.append(3))

    one.store.submit_ops("x", [Op("create", "/1")], first_done)
    one.store.submit_ops("x", [Op("create", "/2")], lambda _: told.append(2))
    rig.until(lambda: len(told) == 3)
    assert told == [1, 2, 3]


def test_a_read_behind_a_write_sees_it(rig):
    one = rig.client()
    one.begin("submit_ops", "x", [Op("create", "/a", b"1")])
    seen = one.begin("get_node", "/a", False)
    names = one.begin("get_children", "/", False)
    rig.until(lambda: bool(seen and names))
    assert seen[0].data == b"1"
    assert "a" in names[0]


# -- watches -----------------------------------------------------------------------------------------------------------


def test_a_watch_fires_once_for_what_it_watches(rig):
    one, two = rig.client(), rig.client()
    one.submit(Op("create", "/a"), Op("create", "/b"))
    rig.settle()
    one.get("/a", watch=True)
    one.children("/b", watch=True)
    two.submit(Op("create", "/a/child"), Op("put", "/b", b"x"))
    rig.settle()
    assert one.nodes == [], "the other kind of change"
    two.submit(Op("put", "/a", b"1"))
    two.submit(Op("create", "/b/child"))
    rig.until(lambda: len(one.nodes) == 2)
    assert one.nodes == ["/a", "/b"]
    two.submit(Op("put", "/a", b"2"), Op("create", "/b/other"))
    rig.settle()
    assert one.nodes == ["/a", "/b"]


def test_a_watch_on_an_absent_node_fires_when_it_is_created(rig):
    one, two = rig.client(), rig.client()
    assert one.get("/a", watch=True) is None
    assert one.children("/b", watch=True) == []
    two.submit(Op("create", "/a"))
    two.submit(Op("create", "/b"))
    rig.until(lambda: len(one.nodes) == 2)
    assert one.nodes == ["/a", "/b"]


def test_a_deletion_is_told_once_however_it_is_watched(rig):
    one, two = rig.client(), rig.client()
    one.submit(Op("create", "/a"))
    rig.settle()
    one.get("/a", watch=True)
    one.get("/a", watch=True)
    one.children("/a", watch=True)
    two.submit(Op("delete", "/a"))
    rig.until(lambda: bool(one.nodes))
    rig.settle()
    assert one.nodes == ["/a"]


def test_both_kinds_of_watch_on_a_node_are_independent(rig):
    one, two = rig.client(), rig.client()
    one.submit(Op("create", "/a"))
    rig.settle()
    one.get("/a", watch=True)
    one.children("/a", watch=True)
    two.submit(Op("put", "/a", b"1"))
    rig.until(lambda: one.nodes == ["/a"])
    two.submit(Op("create", "/a/b"))
    rig.until(lambda: one.nodes == ["/a", "/a"])


def test_a_watch_is_told_before_the_change_is_confirmed_to_its_maker(rig):
    one = rig.client()
    one.submit(Op("create", "/a"))
    one.get("/a", watch=True)
    one.told.clear()
    one.store.submit_ops("x", [Op("put", "/a", b"1")], lambda _: one.told.append("done"))
    rig.until(lambda: "done" in one.told)
    assert one.told == ["/a", "done"]


def test_a_change_is_told_before_a_read_shows_it(rig):
    """Whoever watches learns of a change first, and never finds it by accident."""
    one, two = rig.client(), rig.client()
    one.submit(Op("create", "/a", b"0"))
    rig.settle()
    one.get("/a", watch=True)
    one.told.clear()
    two.begin("submit_ops", "x", [Op("put", "/a", b"1")])

    def read() -> None:
        one.store.get_node("/a", False, seen)

    def seen(node: Node) -> None:
        one.told.append(node.data)
        if node.data == b"0":
            read()

    read()
    rig.until(lambda: b"1" in one.told)
    assert one.told.index("/a") < one.told.index(b"1")


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_ephemeral_nodes_belong_to_their_session_and_go_with_it(rig):
    one, two = rig.client(), rig.client()
    one.submit(Op("create", "/ids"), Op("ephemeral", "/ids/1", b"x"))
    rig.settle()
    assert two.get("/ids/1", watch=True).owner == one.sessions[-1]
    assert two.children("/ids", watch=True) == ["1"]
    rig.expire(one)
    rig.until(lambda: len(two.nodes) == 2)
    assert sorted(two.nodes) == ["/ids", "/ids/1"]
    assert two.get("/ids/1") is None
    assert two.states == [OPEN]
    rig.until(lambda: EXPIRED in one.states)


def test_sessions_have_ids_of_their_own(rig):
    one, two = rig.client(), rig.client()
    assert one.sessions != two.sessions
    assert 0 not in one.sessions + two.sessions


def test_after_the_end_calls_are_refused_until_there_is_another_session(rig):
    one = rig.client(TIMEOUT_MS)
    if isinstance(rig, EmbeddedRig):
        rig.expire(one)
        one.until(EXPIRED)
    else:
        rig.hold(one)
        one.until(SUSPENDED, EXPIRED)
    assert kind_of(lambda: one.submit(Op("create", "/late"))) is Kind.EXPIRED
    assert kind_of(lambda: one.get("/")) is Kind.EXPIRED
    assert kind_of(lambda: one.children("/")) is Kind.EXPIRED


# -- connections that break --------------------------------------------------------------------------------------------


def test_a_lost_connection_suspends_and_the_session_comes_back(wired):
    one, two = wired.client(), wired.client()
    one.submit(Op("ephemeral", "/me"))
    for times in range(1, 4):
        wired.cut(one)
        wired.until(lambda times=times: one.states == [OPEN, *[SUSPENDED, OPEN] * times])
    assert len(one.sessions) == 1
    assert one.get("/me").owner == one.sessions[0]
    assert two.get("/me").owner == one.sessions[0]
    assert two.states == [OPEN]


def test_watches_do_not_outlive_their_connection(wired):
    one, two = wired.client(), wired.client()
    one.submit(Op("create", "/a"), Op("create", "/b"))
    wired.settle()
    for path in ("/a", "/b"):
        one.get(path, watch=True)
    wired.cut(one)
    one.until(SUSPENDED, OPEN)
    one.get("/b", watch=True)
    two.submit(Op("put", "/a", b"1"), Op("put", "/b", b"1"))
    wired.until(lambda: bool(one.nodes))
    wired.settle()
    assert one.nodes == ["/b"]


def test_a_write_whose_answer_is_lost_is_unknown_and_may_have_happened(wired):
    one, two = wired.client(), wired.client()
    wired.hold(one, requests=False)
    first = one.begin("submit_ops", "x", [Op("create", "/a")])
    behind = one.begin("submit_ops", "x", [Op("create", "/b")])
    wired.until(lambda: two.get("/a") is not None)
    wired.cut(one)
    wired.until(lambda: bool(first and behind))
    wired.release(one)
    assert [first[0].kind, behind[0].kind] == [Kind.UNKNOWN, Kind.NOT_DONE]
    assert one.states[-1] is SUSPENDED or one.states[-2:] == [SUSPENDED, OPEN]
    one.until(SUSPENDED, OPEN)
    assert one.get("/a") is not None
    assert one.get("/b") is None


def test_a_write_that_never_arrived_is_unknown_too(wired):
    one, two = wired.client(TIMEOUT_MS), wired.client()
    wired.hold(one)
    outcome = one.begin("submit_ops", "x", [Op("create", "/a")])
    wired.until(lambda: bool(outcome))
    wired.cut(one)
    wired.release(one)
    assert outcome[0].kind is Kind.UNKNOWN
    one.until(OPEN)
    assert (one.get("/a") is None) == (two.get("/a") is None), "whoever reads again knows"


def test_what_is_asked_while_suspended_waits_for_the_connection(wired):
    one = wired.client(3 * TIMEOUT_MS)
    wired.hold(one)
    one.until(SUSPENDED)
    write = one.begin("submit_ops", "x", [Op("create", "/a")])
    behind = one.begin("submit_ops", "x", [Op("create", "/a/b")])
    read = one.begin("get_node", "/a/b", True)
    wired.run(100)
    assert not write
    assert not read
    wired.release(one)
    wired.until(lambda: bool(write and behind and read))
    assert one.states == [OPEN, SUSPENDED, OPEN]
    assert [write, behind] == [[[("/a", 0)]], [[("/a/b", 0)]]]


def test_a_read_that_a_lost_connection_leaves_open_is_answered_or_not_done(wired):
    one = wired.client()
    one.submit(Op("create", "/a", b"1"))
    wired.hold(one, requests=False)
    reads = [
        one.begin("get_node", "/a", True),
        one.begin("get_children", "/a", False),
        one.begin("get_node", "/b", True),
    ]
    wired.run(50)
    wired.cut(one)
    wired.release(one)
    wired.until(lambda: all(reads))
    for (outcome,) in reads:
        assert not isinstance(outcome, Failure) or outcome.kind is Kind.NOT_DONE
    one.until(SUSPENDED, OPEN)


@pytest.mark.parametrize(("requests", "answers"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("busy", [False, True])
def test_silence_suspends_then_expires_whatever_the_client_does(wired, requests, answers, busy):
    """A busy client of kazoo alone would not notice before the silence ends."""
    one, two = wired.client(TIMEOUT_MS), wired.client()
    one.submit(Op("ephemeral", "/me"))
    wired.settle()
    two.get("/me", watch=True)
    wired.hold(one, requests, answers)
    outcomes = []
    while EXPIRED not in one.states:
        if busy:
            outcomes.append(one.begin("submit_ops", f"{len(outcomes)}", [Op("check", "/")]))
        wired.run(50)
    assert one.states[:3] == [OPEN, SUSPENDED, EXPIRED]  # on a slow machine the next session may be open already
    wired.until(lambda: "/me" in two.nodes)
    assert two.states == [OPEN]
    wired.until(lambda: all(outcomes))
    kinds = [outcome[0].kind for outcome in outcomes]
    assert set(kinds) <= {Kind.UNKNOWN, Kind.EXPIRED}
    wired.release(one)
    one.until(SUSPENDED, EXPIRED, OPEN)
    assert len(one.sessions) == 2
    assert two.get("/me") is None
    assert one.submit(Op("ephemeral", "/me")) == [("/me", 0)]
    assert one.get("/me").owner == one.sessions[-1]


def test_a_session_that_the_store_ends_is_over_for_its_client(wired):
    one = wired.client()
    one.submit(Op("create", "/a"), Op("ephemeral", "/me"))
    one.get("/a", watch=True)
    wired.expire(one)
    wired.until(lambda: one.states[-2:] == [EXPIRED, OPEN])
    assert len(one.sessions) == 2
    assert one.get("/me") is None
    assert one.submit(Op("put", "/a", b"1")) == [("/a", 1)]
    wired.settle()
    assert one.nodes == []


def test_a_session_lives_as_long_as_its_client_is_heard(wired):
    one = wired.client(TIMEOUT_MS)
    one.submit(Op("ephemeral", "/me"))
    wired.run(3 * TIMEOUT_MS)
    assert one.states == [OPEN]
    assert one.get("/me") is not None
