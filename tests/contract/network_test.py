"""The laws of Network and Inputs, for every implementation.

Zone: real. Sockets and their troubles are tested in tests/server, the simulated network's in tests/sim.
"""

from __future__ import annotations

from ottla.seams import Failure, Gate, Kind, Region


def request(n: int, size: int = 20) -> bytes:
    return n.to_bytes(4, "big") * (size // 4)


def echo(rig):
    def behave(slot, frame):
        rig.network.send_reply(slot, [b"re:", bytes(frame)])
        return Gate.NEXT

    rig.broker.behave = behave


def test_a_request_is_answered(rig):
    echo(rig)
    client = rig.client()
    client.send(request(1))
    rig.until(lambda: len(client.received) == 1)
    assert client.received == [b"re:" + request(1)]
    peer = rig.broker.slots[0].peer
    assert (peer.listener, peer.principal) == ("PLAINTEXT", "User:ANONYMOUS")
    assert peer.host


def test_answers_leave_in_the_order_of_the_requests(rig):
    rig.broker.behave = lambda slot, frame: Gate.NEXT
    client = rig.client()
    for n in range(5):
        client.send(request(n))
    rig.until(lambda: len(rig.broker.slots) == 5)
    for n in (3, 1, 4, 2):
        rig.turn(lambda n=n: rig.network.send_reply(rig.broker.slots[n], [b"answer-%04d" % n]))
    rig.run(20)
    assert client.received == []
    rig.turn(lambda: rig.network.send_reply(rig.broker.slots[0], [b"answer-0000"]))
    rig.until(lambda: len(client.received) == 5)
    assert client.received == [b"answer-%04d" % n for n in range(5)]


def test_an_answer_of_no_parts_is_not_sent_but_keeps_its_place(rig):
    def behave(slot, frame):
        rig.network.send_reply(slot, [] if len(rig.broker.slots) == 1 else [b"second"])
        return Gate.NEXT

    rig.broker.behave = behave
    client = rig.client()
    client.send(request(1))
    client.send(request(2))
    rig.until(lambda: len(client.received) == 1)
    assert client.received == [b"second"]


def test_a_closed_gate_holds_the_next_request_back_until_the_reply(rig):
    rig.broker.behave = lambda slot, frame: Gate.WAIT
    client = rig.client()
    for n in range(3):
        client.send(request(n))
    rig.until(lambda: len(rig.broker.slots) == 1)
    rig.run(20)
    assert len(rig.broker.slots) == 1
    rig.turn(lambda: rig.network.send_reply(rig.broker.slots[0], [b"first"]))
    rig.until(lambda: len(rig.broker.slots) == 2)
    rig.run(20)
    assert rig.broker.frames == [request(0), request(1)]


def test_release_opens_the_gate_before_the_reply(rig):
    rig.broker.behave = lambda slot, frame: Gate.WAIT
    client = rig.client()
    client.send(request(0))
    client.send(request(1))
    rig.until(lambda: len(rig.broker.slots) == 1)
    rig.turn(lambda: rig.network.open_gate(rig.broker.slots[0]))
    rig.until(lambda: len(rig.broker.slots) == 2)
    rig.turn(lambda: rig.network.send_reply(rig.broker.slots[1], [b"second"]))
    rig.run(20)
    assert client.received == []
    rig.turn(lambda: rig.network.send_reply(rig.broker.slots[0], [b"first"]))
    rig.until(lambda: len(client.received) == 2)
    assert client.received == [b"first", b"second"]


def test_a_gate_that_was_opened_within_the_turn_is_open(rig):
    def behave(slot, frame):
        if len(rig.broker.slots) == 1:
            rig.network.send_reply(slot, [b"x"])
        else:
            rig.network.open_gate(slot)
        return Gate.WAIT

    rig.broker.behave = behave
    client = rig.client()
    for n in range(3):
        client.send(request(n))
    rig.until(lambda: len(rig.broker.slots) == 3)


def test_a_held_frame_stays(rig):
    held = []

    def behave(slot, frame):
        held.append(rig.network.hold_frame(slot, frame))
        return Gate.NEXT

    rig.broker.behave = behave
    client = rig.client()
    sizes = [20, 400, 100_000, 8, 200_000]
    for n, size in enumerate(sizes):
        client.send(request(n, size))
    rig.until(lambda: len(held) == len(sizes))
    assert [bytes(frame) for frame in held] == [request(n, size) for n, size in enumerate(sizes)]
    held[0][:4] = b"mine"
    for n in range(len(sizes)):
        rig.turn(lambda n=n: rig.network.send_reply(rig.broker.slots[n], [bytes(held[n][:4])]))
    rig.until(lambda: len(client.received) == len(sizes))
    assert client.received[0] == b"mine"


def test_the_end_of_a_connection_is_told_once_and_late_replies_are_dropped(rig):
    client = rig.client()
    client.send(request(1))
    rig.until(lambda: len(rig.broker.slots) == 1)
    client.close()
    rig.until(lambda: bool(rig.broker.gone))
    rig.turn(lambda: rig.network.send_reply(rig.broker.slots[0], [b"too late"]))
    rig.run(20)
    assert rig.broker.gone == [rig.broker.slots[0].peer]


def test_the_broker_can_close_a_connection(rig):
    def behave(slot, frame):
        rig.network.close_connection(slot.peer, "for the test")
        return Gate.WAIT

    rig.broker.behave = behave
    client = rig.client()
    client.send(request(1))
    client.send(request(2))
    rig.until(lambda: client.closed and bool(rig.broker.gone))
    assert rig.broker.frames == [request(1)]


def test_a_muted_peer_is_not_read_before_its_time(rig):
    until = []
    seen = []

    def behave(slot, frame):
        seen.append(rig.clock.now().mono_ns)
        if not until:
            until.append(rig.clock.now().mono_ns + 30_000_000)
            rig.network.pause_reading(slot.peer, until[0])
        rig.network.send_reply(slot, [b"answered"])
        return Gate.NEXT

    rig.broker.behave = behave
    client = rig.client()
    for n in range(3):
        client.send(request(n))
    rig.until(lambda: len(client.received) == 3)
    assert seen[0] < until[0]
    assert min(seen[1:]) >= until[0]


def test_a_region_is_read_when_it_is_sent(rig):
    file = rig.disk.open("a.log", True)
    sizes = [10, 1000, 70_000, 200_000, 3]
    file.append([bytes(range(256)) * 2000])
    regions = [Region(file, 7 * n, size, file.generation) for n, size in enumerate(sizes)]
    rig.broker.behave = lambda slot, frame: rig.network.send_reply(slot, [b"head", *regions, b"tail"]) or Gate.NEXT
    client = rig.client()
    client.send(request(1))
    client.send(request(2))
    rig.until(lambda: len(client.received) == 2)
    content = bytes(range(256)) * 2000
    expected = b"head" + b"".join(content[r.pos : r.pos + r.size] for r in regions) + b"tail"
    assert client.received == [expected, expected]


def test_a_region_of_a_closed_and_unlinked_file_is_still_sent(rig, outcomes):
    file = rig.disk.open("a.log", True)
    file.append([b"x" * 100_000])
    client = rig.client()
    client.send(request(1))
    client.send(request(2))
    rig.until(lambda: len(rig.broker.slots) == 2)
    region = Region(file, 0, 100_000, file.generation)
    rig.turn(lambda: rig.network.send_reply(rig.broker.slots[1], [region]))
    file.close()
    done = outcomes()
    rig.disk.unlink("a.log", done)
    rig.until(lambda: len(done) == 1)
    rig.turn(lambda: rig.network.send_reply(rig.broker.slots[0], [b"first"]))
    rig.until(lambda: len(client.received) == 2)
    assert client.received[1] == b"x" * 100_000


def test_a_region_of_a_truncated_file_is_never_sent(rig):
    for size in (1000, 100_000):
        name = f"{size}.log"
        file = rig.disk.open(name, True)
        file.append([b"old" * 100_000])
        client = rig.client()
        before = len(rig.broker.slots)
        client.send(request(1))
        client.send(request(2))
        rig.until(lambda before=before: len(rig.broker.slots) == before + 2)
        first, second = rig.broker.slots[before:]
        region = Region(file, 0, size, file.generation)
        rig.turn(lambda second=second, region=region: rig.network.send_reply(second, [region]))
        file.truncate(10)
        file.append([b"new" * 100_000])
        rig.turn(lambda first=first: rig.network.send_reply(first, [b"first"]))
        rig.until(lambda client=client: client.closed)
        assert client.received in ([], [b"first"])


def test_a_region_beyond_the_end_closes_the_connection(rig):
    for size in (1000, 100_000):
        file = rig.disk.open(f"{size}.log", True)
        file.append([b"x" * (size - 1)])
        region = Region(file, 0, size, file.generation)
        rig.broker.behave = lambda slot, frame, region=region: rig.network.send_reply(slot, [region]) or Gate.NEXT
        client = rig.client()
        client.send(request(1))
        rig.until(lambda client=client: client.closed)
        assert client.received == []


def test_a_broker_can_ask_itself_in_order(rig, outcomes):
    echo(rig)
    done = outcomes()
    deadline = []
    rig.turn(lambda: deadline.append(rig.clock.now().mono_ns + 5_000_000_000))
    done.inside += 1
    for n in range(3):
        rig.network.call_broker(1, request(n), deadline[0], done)
    done.inside -= 1
    rig.until(lambda: len(done) == 3)
    assert done == [b"re:" + request(n) for n in range(3)]


def test_a_call_that_is_not_answered_times_out(rig, outcomes):
    done = outcomes()
    rig.turn(lambda: rig.network.call_broker(1, request(1), rig.clock.now().mono_ns + 5_000_000, done))
    rig.until(lambda: len(done) == 1)
    assert isinstance(done[0], Failure)
    assert done[0].kind is Kind.TIMEOUT


def test_a_completion_is_followed_by_the_end_of_its_turn(rig):
    file = rig.disk.open("a.log", True)
    file.sync(lambda _size: rig.broker.log.append("done"))
    rig.until(lambda: len(rig.broker.log) >= 2 and rig.broker.log[-1] == "end_turn" and "done" in rig.broker.log)
    assert rig.broker.log[rig.broker.log.index("done") + 1] == "end_turn"
