"""Connections that are ready together: their answers are sent when all of them are served.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.seams import Gate, Region
from ottla.server.connections.send_buffer import LARGE
from ottla.server.disks.disk import RealDisk

OK = b"\0\0\0\2ok"
CONTENT = bytes(range(250)) * 400


@pytest.fixture
def file(server, tmp_path):
    """A file that is not kept open at the end."""
    file = made(server, tmp_path)
    yield file
    assert not file.busy
    file.close()


def made(server, tmp_path):
    file = RealDisk(str(tmp_path), server.turns).open("a.log", True)
    file.append([CONTENT])
    return file


def served_together(server, framed, answer, meanwhile, requests=1):
    """Serve two connections in one round: requests of the first one get `answer`; the turn of the second one calls
    `meanwhile` with the connection and the socket of the first. Returns both sockets, the first one first."""
    by_peer = {}
    for _ in range(2):
        sock = server.connect()
        server.send(sock, framed(20))
        assert server.receive(sock, 6) == OK
        (peer,) = set(server.traffic.connections) - set(by_peer)
        by_peer[peer] = sock
    order = []

    def on_frame(slot, _):
        server.turns.clock.now()
        if slot.peer not in order:
            order.append(slot.peer)
            if len(order) == 2:
                meanwhile(order[0], by_peer[order[0]])
        server.broker.network.send_reply(slot, answer if slot.peer is order[0] else [b"ok"])
        return Gate.NEXT

    server.traffic.on_frame = on_frame
    for sock in by_peer.values():
        sock.send(framed(20) * requests)
    server.until(lambda: len(order) == 2)
    return [by_peer[peer] for peer in order]


def has_come(sock):
    try:
        return len(sock.recv(1 << 20))
    except BlockingIOError:
        return 0


def test_no_answer_leaves_before_all_are_served(server, framed):
    early = []
    first, second = served_together(server, framed, [b"ok"], lambda _, sock: early.append(has_come(sock)))
    assert server.receive(first, 6) == server.receive(second, 6) == OK
    assert early == [0]


def test_much_to_send_leaves_at_once(server, framed):
    """Otherwise many connections would keep much memory until the last of them is served."""
    early = []
    served_together(server, framed, [bytes(LARGE // 2)], lambda _, sock: early.append(has_come(sock)), requests=3)
    assert early == [3 * (4 + LARGE // 2)]


@pytest.mark.parametrize("size", [200, len(CONTENT)], ids=["small", "by sendfile"])
def test_a_file_that_is_removed_before_the_round_ends_is_still_sent(server, framed, tmp_path, size):
    file = made(server, tmp_path)
    region = Region(file, 0, size, file.generation)
    first, second = served_together(server, framed, [b"he", region, b"end"], lambda *_: file.close())
    whole = b"he" + CONTENT[:size] + b"end"
    assert server.receive(first, 4 + len(whole)) == len(whole).to_bytes(4, "big") + whole
    assert server.receive(second, 6) == OK


def test_what_is_cut_off_before_the_round_ends_is_never_sent(server, framed, file):
    region = Region(file, 0, len(CONTENT), file.generation)
    _, second = served_together(server, framed, [b"head", region], lambda *_: file.truncate(500))
    assert server.receive(second, 6) == OK
    server.until(lambda: server.broker.gone == 1)


def test_a_small_region_that_was_cut_off_ends_the_connection(server, framed, file):
    old = Region(file, 400, 200, file.generation)
    file.truncate(500)
    _, second = served_together(server, framed, [b"head", old], lambda *_: None)
    assert server.receive(second, 6) == OK
    server.until(lambda: server.broker.gone == 1)


def test_a_connection_that_is_closed_before_the_round_ends_lets_the_file_go(server, framed, file):
    region = Region(file, 0, len(CONTENT), file.generation)
    _, second = served_together(server, framed, [region], lambda peer, _: peer.close_connection())
    assert server.receive(second, 6) == OK
    server.until(lambda: server.broker.gone == 1)


def test_several_regions_of_one_answer_keep_their_order(server, framed, file):
    small = [Region(file, at, 50, file.generation) for at in (0, 100)]
    large = Region(file, 10, LARGE, file.generation)
    answer = [b"1", small[0], b"2", small[1]]
    first, _ = served_together(server, framed, [*answer, b"3"], lambda *_: None, requests=2)
    whole = b"1" + CONTENT[:50] + b"2" + CONTENT[100:150] + b"3"
    assert server.receive(first, 2 * (4 + len(whole))) == (len(whole).to_bytes(4, "big") + whole) * 2
    server.traffic.on_frame = server.broker.on_frame
    server.broker.answer = [*answer, large, b"3"]
    server.send(first, framed(20) * 2)
    whole = whole[:-1] + CONTENT[10 : 10 + LARGE] + b"3"
    assert server.receive(first, 2 * (4 + len(whole))) == (len(whole).to_bytes(4, "big") + whole) * 2
