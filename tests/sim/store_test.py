"""The simulated metadata store: its guarantees, and its faults.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.seams import Failure, Kind, Node, Op, Session
from ottla.sim.entropy import Streams
from ottla.sim.machines.ensemble import STORE_NODES, Ensemble
from ottla.sim.machines.machine import Death, Machine
from ottla.sim.machines.store import SESSION_TIMEOUT_NS, SimStore
from ottla.sim.networks.network import FOREVER, Network
from ottla.sim.world import MS, SECOND, US, Timeline


class Told:
    """The inputs of a broker that notes the reports of its store."""

    def __init__(self) -> None:
        self.log = []
        self.turns = 0

    def on_session(self, state, session_id):
        self.log.append((state, session_id))

    def on_standstill(self):
        self.log.append("stood still")

    def on_node(self, path):
        self.log.append(path)

    def end_turn(self):
        self.turns += 1

    def run_background(self, _budget_ns):
        return False

    @property
    def states(self):
        return [entry[0] for entry in self.log if isinstance(entry, tuple) and isinstance(entry[0], Session)]


class Client:
    """A process with a session."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.machine = Machine(number, world.timeline, world.streams.scoped_streams(f"node{number}"), [])
        self.process = self.machine.boot_process()
        self.told = Told()
        self.process.inputs = self.told
        self.store = SimStore(self.process, world.ensemble)
        self.store.start_session()

    def __getattr__(self, name):
        return getattr(self.store, name)

    def server(self):
        return self.store._connection.node

    def ask(self, what, *arguments):
        """Send a request and wait for the outcome."""
        outcomes = []
        getattr(self.store, what)(*arguments, outcomes.append)
        assert not outcomes, "done was called inside the call"
        self.world.run_while(lambda: not outcomes)
        return outcomes[0]

    def create(self, path, data=b"", verb="create"):
        return self.ask("submit_ops", "lane", [Op(verb, path, data)])

    def cut(self, inward=True, outward=True):
        for node in STORE_NODES:
            path = self.world.network.path_between(f"node{self.machine.node}", node)
            path.inward_cut_ns, path.outward_cut_ns = FOREVER * inward, FOREVER * outward

    def mend(self):
        for node in STORE_NODES:
            path = self.world.network.path_between(f"node{self.machine.node}", node)
            path.inward_cut_ns = path.outward_cut_ns = 0


class World:
    """An ensemble and its clients."""

    def __init__(self, seed=1) -> None:
        self.timeline = Timeline()
        self.streams = Streams(seed)
        self.network = Network(self.timeline, self.streams.named_stream("net"))
        self.ensemble = Ensemble(self.timeline, self.network, self.streams.named_stream("store"))

    def client(self, number=0) -> Client:
        client = Client(self, number)
        self.run_while(lambda: not client.told.states)
        assert client.told.states == [Session.OPEN]
        return client

    def run_while(self, waiting):
        assert self.timeline.run_while(waiting, self.timeline.now_ns + 30 * SECOND)

    def run(self, seconds: float = 1.0) -> None:
        self.timeline.run_until(self.timeline.now_ns + int(seconds * SECOND))


@pytest.fixture
def world() -> World:
    return World()


def test_a_change_is_seen_by_whoever_made_it_at_once_and_by_others_soon(world):
    one, two = world.client(0), world.client(1)
    assert one.create("/a", b"1") == [("/a", 0)]
    assert one.ask("get_node", "/a", False).data == b"1"
    world.run(0.1)
    assert two.ask("get_node", "/a", False).data == b"1"
    assert two.ask("get_children", "/", False) == ["a"]


def test_a_lagging_server_answers_from_the_past_until_a_change_of_its_own_client(world):
    one, two = world.client(0), world.client(1)
    while two.server() == one.server():
        two = world.client(2)
    for server in world.ensemble.servers:
        server.lag_ns = 0 if server.node == one.server() else SECOND
    one.create("/a")
    assert two.ask("get_node", "/a", False) is None
    assert two.ask("submit_ops", "lane", [Op("check", "/")]) == [("/", -1)]
    assert isinstance(two.ask("get_node", "/a", False), Node), "a check has its place in the order"


def test_a_client_never_sees_an_older_state_after_it_changed_servers(world):
    one = world.client(0)
    one.create("/a")
    for server in world.ensemble.servers:
        server.lag_ns = 100 * MS
    one.ask("submit_ops", "lane", [Op("put", "/a", b"2")])
    for _ in range(6):
        world.ensemble.break_connections(lambda _host: True)
        world.run_while(lambda: one.told.states[-1] is Session.OPEN)
        assert one.ask("get_node", "/a", False).data == b"2"


def test_conditions_are_conflicts_and_bad_paths_are_not_done(world):
    one = world.client(0)
    one.create("/a")
    assert one.create("/a").kind is Kind.CONFLICT
    assert one.ask("submit_ops", "lane", [Op("put", "/a", b"", 7)]).kind is Kind.CONFLICT
    assert one.create("a").kind is Kind.NOT_DONE


def test_one_in_flight_per_lane_and_a_failure_takes_what_waits_behind_it(world):
    one = world.client(0)
    outcomes = []
    for path in ("/x/y", "/z", "/w"):
        one.submit_ops("lane", [Op("create", path)], outcomes.append)
    one.submit_ops("other", [Op("create", "/o")], outcomes.append)
    world.run()
    assert [o.kind for o in outcomes if isinstance(o, Failure)] == [Kind.CONFLICT, Kind.NOT_DONE, Kind.NOT_DONE]
    assert [("/o", 0)] in outcomes
    assert world.ensemble.tree.get_children("/") == ["o"]


def test_a_watch_fires_once_and_before_the_new_state_is_seen(world):
    one, two = world.client(0), world.client(1)
    two.ask("get_node", "/a", True)
    two.ask("get_children", "/", True)
    one.create("/a")
    world.run_while(lambda: "/a" not in two.told.log or "/" not in two.told.log)
    one.ask("submit_ops", "lane", [Op("put", "/a", b"2")])
    world.run()
    assert [entry for entry in two.told.log if isinstance(entry, str)] == ["/a", "/"]


def test_ephemeral_nodes_go_when_the_process_was_silent_for_its_session_time(world):
    one, two = world.client(0), world.client(1)
    one.create("/e", b"", "ephemeral")
    world.run()
    died = world.timeline.now_ns
    one.machine.end_process(Death.KILL)
    world.network.on_process_gone(one.process, silent=False)
    world.run_while(lambda: world.ensemble.tree.get_node("/e") is not None)
    assert SESSION_TIMEOUT_NS * 0.6 <= world.timeline.now_ns - died <= SESSION_TIMEOUT_NS * 1.3
    assert two.told.states == [Session.OPEN], "pings keep the session"


def test_a_closed_session_is_over_at_once(world):
    one = world.client(0)
    one.create("/e", b"", "ephemeral")
    one.end_session()
    one.machine.end_process(Death.STOP)
    world.run(0.1)
    assert world.ensemble.tree.get_node("/e") is None


def test_connection_loss_suspends_keeps_the_session_and_drops_the_watches(world):
    one, two = world.client(0), world.client(1)
    one.create("/e", b"", "ephemeral")
    one.ask("get_node", "/a", True)
    session = one.session_id
    world.network.cut_off(one.store._connection)
    world.run()
    assert one.told.log == [(Session.OPEN, session), (Session.SUSPENDED, session), (Session.OPEN, session)]
    two.create("/a")
    world.run()
    assert "/a" not in one.told.log
    assert world.ensemble.tree.get_node("/e") is not None


def test_what_was_on_its_way_when_the_connection_broke_is_unknown_and_what_waits_goes_on(world):
    one = world.client(0)
    outcomes = []
    one.submit_ops("lane", [Op("create", "/a")], outcomes.append)
    one.get_node("/", False, outcomes.append)
    world.network.cut_off(one.store._connection)
    world.run_while(lambda: one.told.states[-1] is not Session.SUSPENDED)
    one.submit_ops("lane two", [Op("create", "/b")], outcomes.append)
    world.run()
    assert [o.kind for o in outcomes[:2]] == [Kind.UNKNOWN, Kind.NOT_DONE]
    assert outcomes[2] == [("/b", 0)]


def test_unknown_means_done_in_some_worlds_and_not_done_in_others():
    found = set()
    for seed in range(40):
        world = World(seed)
        one = world.client(0)
        outcomes = []
        one.submit_ops("lane", [Op("create", "/a")], outcomes.append)
        world.timeline.schedule_after(100 * US, "cut", world.ensemble.break_connections, lambda _host: True)
        world.run()
        if isinstance(outcomes[0], Failure):
            found.add(world.ensemble.tree.get_node("/a") is not None)
    assert found == {True, False}


@pytest.mark.parametrize(("inward", "outward"), [(True, True), (True, False), (False, True)])
def test_a_partition_longer_than_the_session_ends_it_on_both_sides(world, inward, outward):
    one = world.client(0)
    one.create("/e", b"", "ephemeral")
    session = one.session_id
    one.cut(inward, outward)
    outcomes = []
    one.submit_ops("lane", [Op("create", "/late")], outcomes.append)
    world.run(4)
    assert one.told.states[:3] == [Session.OPEN, Session.SUSPENDED, Session.EXPIRED]
    assert outcomes[0].kind is Kind.UNKNOWN
    assert one.create("/x").kind is Kind.EXPIRED
    if inward:
        assert world.ensemble.tree.get_node("/e") is None
    one.mend()
    world.run_while(lambda: one.told.states[-1] is not Session.OPEN)
    assert one.session_id != session
    world.run(3)
    assert world.ensemble.tree.get_node("/e") is None
    assert (world.ensemble.tree.get_node("/late") is None) == inward, "a request of a session that is over does nothing"
    assert one.create("/x") == [("/x", 0)]


def test_a_paused_process_learns_of_its_expiry_afterwards(world):
    one = world.client(0)
    one.create("/e", b"", "ephemeral")
    one.process.pause_until(world.timeline.now_ns + 5 * SECOND)
    outcomes = []
    world.run(4)
    assert world.ensemble.tree.get_node("/e") is None
    assert one.told.states == [Session.OPEN]
    one.submit_ops("lane", [Op("create", "/zombie")], outcomes.append)
    world.run(3)
    assert one.told.log[1] == "stood still", "before anything else"
    assert one.told.states == [Session.OPEN, Session.SUSPENDED, Session.EXPIRED, Session.OPEN]
    assert world.ensemble.tree.get_node("/zombie") is None
    assert outcomes[0].kind in (Kind.UNKNOWN, Kind.EXPIRED)


def test_without_a_quorum_nobody_is_served_and_sessions_are_kept(world):
    one = world.client(0)
    one.create("/e", b"", "ephemeral")
    world.ensemble.lose_quorum(int(0.8 * SESSION_TIMEOUT_NS))
    world.run(4)
    assert one.told.states == [Session.OPEN, Session.SUSPENDED, Session.OPEN]
    assert world.ensemble.tree.get_node("/e") is not None
    assert one.create("/a") == [("/a", 0)]


def test_one_server_that_restarts_costs_its_clients_the_connection_only(world):
    clients = [world.client(number) for number in range(6)]
    world.ensemble.servers[0].restart_server(SECOND)
    world.run(3)
    assert {tuple(client.told.states) for client in clients} == {
        (Session.OPEN,),
        (Session.OPEN, Session.SUSPENDED, Session.OPEN),
    }


def test_a_server_that_restarts_while_there_is_no_quorum_serves_nobody_before_there_is_one(world):
    one = world.client(0)
    one.create("/e", b"", "ephemeral")
    one.ask("get_node", "/e", True)
    world.ensemble.lose_quorum(int(0.8 * SESSION_TIMEOUT_NS))
    world.run(0.1)
    for server in world.ensemble.servers:
        server.restart_server(SECOND // 10)
    world.run(1)
    assert one.told.states == [Session.OPEN, Session.SUSPENDED]
    assert not set(STORE_NODES) & set(world.network.listening)
    world.run(3)
    assert one.told.states == [Session.OPEN, Session.SUSPENDED, Session.OPEN]
    assert one.create("/a") == [("/a", 0)]


def test_completions_are_turns_of_their_own_in_the_order_of_the_requests(world):
    one = world.client(0)
    order = []
    for number in range(5):
        one.get_node(f"/{number}", False, lambda _, number=number: order.append(number))
    before = one.told.turns
    world.run()
    assert order == [0, 1, 2, 3, 4]
    assert one.told.turns == before + 5


def test_a_node_changed_by_hand_fires_watches(world):
    one = world.client(0)
    one.ask("get_node", "/a", True)
    assert world.ensemble.change_nodes_now([Op("create", "/a", b"by hand")]) == [("/a", 0)]
    assert world.ensemble.change_nodes_now([Op("create", "/a")]).kind is Kind.CONFLICT
    world.run()
    assert "/a" in one.told.log
