"""Connections of the simulated network and their faults.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.seams import Failure, Kind, Region
from ottla.sim.machines.machine import Death
from ottla.sim.mutants.ablation import without_safeguard
from ottla.sim.world import MS, SECOND


class Client:
    """Opens a connection at once, and sends when it is open."""

    def __init__(self, small, host="client") -> None:
        self.small = small
        self.got = []
        self.closed = 0
        self.connection = small.network.open_connection(host, 0, self._opened, self.got.append, self._closed)
        self.waiting = []
        self.open = False

    def _opened(self, _connection):
        self.open = True
        for frame in self.waiting:
            self.small.network.send_frame(self.connection, frame)

    def _closed(self):
        self.closed += 1

    def send(self, frame):
        if self.open:
            self.small.network.send_frame(self.connection, frame)
        else:
            self.waiting.append(frame)


def test_requests_and_answers_keep_their_order(worlds):
    for seed in range(10):
        small = worlds(seed)
        small.network.weather.loss = 0.3
        client = Client(small)
        frames = [b"frame %d" % number for number in range(30)]
        for frame in frames:
            client.send(frame)
        small.run(60)
        assert small.echo.frames == frames
        assert client.got == frames


def test_loss_only_makes_late(small):
    small.network.weather.loss = 1.0
    client = Client(small)
    client.send(b"slow")
    small.run(0.1)
    assert client.got == []
    small.run(5)
    assert client.got == [b"slow"]


def test_between_connections_nothing_is_ordered(worlds):
    orders = set()
    for seed in range(20):
        small = worlds(seed)
        for host in "abc":
            Client(small, host).send(host.encode())
        small.run()
        orders.add(tuple(small.echo.frames))
    assert len(orders) > 1


def test_one_way_cuts(small):
    client = Client(small)
    small.run(0.1)
    path = small.network.path_between("client", 0)
    path.outward_cut_ns = small.timeline.now_ns + SECOND
    client.send(b"heard")
    small.run(0.5)
    assert small.echo.frames == [b"heard"]
    assert client.got == []
    small.run(2)
    assert client.got == [b"heard"]
    path.inward_cut_ns = small.timeline.now_ns + SECOND
    client.send(b"late")
    small.run(0.5)
    assert small.echo.frames == [b"heard"]
    small.run(2)
    assert client.got == [b"heard", b"late"]


def test_nobody_connects_through_a_cut_or_to_a_dead_node(small):
    small.network.path_between("cut", 0).inward_cut_ns = 10 * SECOND
    cut = Client(small, "cut")
    small.run(5)
    assert (cut.open, cut.closed) == (False, 1)
    small.machine.end_process(Death.KILL)
    small.network.on_process_gone(small.process, silent=False)
    refused = Client(small, "refused")
    small.run(1)
    assert (refused.open, refused.closed) == (False, 1)


def test_a_broken_connection_still_delivers_what_was_on_its_way(small):
    client = Client(small)
    small.run(0.1)
    client.send(b"on its way")
    small.network.cut_off(client.connection)
    small.run()
    assert small.echo.frames == [b"on its way"]
    assert client.closed == 1
    assert client.got == []
    assert len(small.echo.gone) == 1


def test_the_death_of_a_node_is_noticed(small):
    client = Client(small)
    small.run(0.1)
    client.send(b"x")
    small.machine.end_process(Death.KILL)
    small.network.on_process_gone(small.process, silent=False)
    small.run()
    assert client.closed == 1


def test_a_closed_gate_holds_the_next_request(small):
    small.echo.late = True
    client = Client(small)
    client.send(b"first")
    client.send(b"second")
    small.run(0.1)
    assert small.echo.frames == [b"first"]
    small.shell.open_gate(small.echo.slots[0])
    small.run(0.1)
    assert small.echo.frames == [b"first", b"second"]
    small.shell.send_reply(small.echo.slots[1], [b"two"])
    small.run(0.1)
    assert client.got == [], "answers leave in the order of the requests"
    small.shell.send_reply(small.echo.slots[0], [b"one"])
    small.run(0.1)
    assert client.got == [b"one", b"two"]


def test_a_frame_dies_when_on_frame_returns_unless_it_is_held(small):
    small.echo.late = True
    client = Client(small)
    client.send(b"borrowed")
    small.run(0.1)
    assert bytes(small.echo.slots[0].frame) == b"\xdb" * 8


def test_a_muted_peer_waits(small):
    client = Client(small)
    client.send(b"one")
    small.run(0.1)
    now = small.process.clock.now().mono_ns
    small.shell.pause_reading(small.echo.slots[0].peer, now + 500 * MS)
    client.send(b"two")
    small.run(0.3)
    assert small.echo.frames == [b"one"]
    small.run(0.5)
    assert small.echo.frames == [b"one", b"two"]


def region_client(small, act):
    """A client whose answer is a region of a file; `act` happens between reply and send."""
    file = small.disk.open("a", True)
    file.append([b"0123456789"])
    small.echo.answer = lambda _frame: [b"head ", Region(file, 2, 5, file.generation)]
    client = Client(small)
    client.send(b"fetch")
    small.run(0.01)
    if client.connection.number in small.network.connections:
        client.connection.server.stalled_until_ns = small.timeline.now_ns + 100 * MS
    client.send(b"fetch again")
    small.run(0.05)
    act(file)
    small.run(1)
    return client


def test_a_region_is_read_when_it_is_sent(small):
    client = region_client(small, lambda file: file.append([b"more"]))
    assert client.got == [b"head 23456"] * 2


def test_a_region_of_a_file_that_was_cut_closes_the_connection(small):
    def cut(file):
        file.truncate(3)
        file.append([b"other bytes"])

    client = region_client(small, cut)
    assert client.got == [b"head 23456"]
    assert client.closed == 1
    assert len(small.echo.gone) == 1


@without_safeguard("region_generation")
def test_without_the_safeguard_other_bytes_are_sent(small):
    def cut(file):
        file.truncate(3)
        file.append([b"other bytes"])

    assert region_client(small, cut).got[1] == b"head 2othe"


def test_a_reply_without_parts_sends_nothing_and_frees_its_place(small):
    small.echo.answer = lambda frame: [] if frame == b"silent" else [bytes(frame)]
    client = Client(small)
    client.send(b"silent")
    client.send(b"loud")
    small.run()
    assert client.got == [b"loud"]


def test_a_flipped_bit_stays_within_the_batch_of_a_produce_request(small):
    small.network.weather.garble = 1.0
    client = Client(small)
    produce = bytes(300)
    client.send(produce)
    client.send(b"\0\1" + bytes(298))
    small.run()
    changed = [at for at, byte in enumerate(small.echo.frames[0]) if byte]
    assert len(changed) == 1
    assert changed[0] > 200
    assert small.echo.frames[1] == b"\0\1" + bytes(298)


def test_a_connection_that_stalls_delivers_late_and_in_order_and_holds_up_no_other(small):
    stalled, other = Client(small), Client(small, "other")
    small.run(1)
    stalled.send(b"before")
    stalled.connection.hold_frames_until(small.network.timeline.now_ns + 5 * SECOND)
    for client in (stalled, other):
        client.send(b"one of " + client.connection.host.encode())
    stalled.send(b"two")
    small.run(4)
    assert small.echo.frames == [b"before", b"one of other"]
    small.run(2)
    assert small.echo.frames[2:] == [b"one of client", b"two"]


def test_a_lane_to_another_node_stalls_and_no_other_lane(small):
    done = []
    late = small.process.clock.now().mono_ns + 20 * SECOND
    small.network.listening[7] = small.network.listening[0]
    for lane in ("markers", ""):
        small.shell.call_broker(7, b"first", late, lambda _value: None, lane)
    small.run(1)
    small.shell.stall_queue("markers", small.network.timeline.now_ns + 5 * SECOND)
    for lane in ("markers", ""):
        small.shell.call_broker(7, lane.encode() or b"others", late, lambda value: done.append(bytes(value)), lane)
    small.run(4)
    assert done == [b"others"]
    small.run(2)
    assert done == [b"others", b"markers"]


def test_calls_to_a_node_are_answered_once_each(small):
    done = []
    late = small.process.clock.now().mono_ns + 10 * SECOND
    for frame in (b"one", b"two"):
        small.shell.call_broker(0, frame, late, lambda value: done.append(bytes(value)))
    assert done == []
    small.run()
    assert done == [b"one", b"two"]


@pytest.mark.parametrize(("death", "kind"), [(False, Kind.TIMEOUT), (True, Kind.UNKNOWN)])
def test_calls_that_nobody_answers_fail(small, death, kind):
    small.echo.late = True
    done = []
    small.shell.call_broker(0, b"one", small.process.clock.now().mono_ns + SECOND, done.append)
    small.run(0.1)
    if death:
        for connection in list(small.network.connections.values()):
            small.network.cut_off(connection)
    small.run(2)
    assert len(done) == 1
    assert isinstance(done[0], Failure)
    assert done[0].kind is kind
