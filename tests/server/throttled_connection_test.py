"""Connections that the broker throttles, and the measured time of turns.

Zone: real.
"""

from __future__ import annotations

from ottla.seams import Gate
from ottla.server.connections import connection as connections


def only_connection(server):
    (connection,) = server.traffic.connections
    return connection


def muting(server, seconds: float):
    """Answer every request, and throttle its connection."""

    def on_frame(slot, _view):
        server.broker.network.send_reply(slot, [b"answered"])
        until_ns = int((server.loop.time() + seconds) * 1e9)
        server.broker.network.pause_reading(slot.peer, until_ns)
        return Gate.NEXT

    return on_frame


def test_the_response_leaves_before_the_connection_is_muted(server, framed):
    server.traffic.on_frame = muting(server, 1_000_000)
    client = server.connect()
    server.send(client, framed(20) * 3)
    assert server.receive(client, 12)[4:] == b"answered"
    connection = only_connection(server)
    assert connection.blocked
    assert connection.reader.is_collecting, "the other requests wait"


def test_the_other_requests_follow_after_the_pause(server, framed):
    server.traffic.on_frame = muting(server, 0.01)
    client = server.connect()
    server.send(client, framed(20) * 3)
    assert server.receive(client, 36)[-8:] == b"answered"


def test_a_closed_connection_is_not_kept_until_the_end_of_its_pause(server, framed, monkeypatch):
    monkeypatch.setattr(connections, "MUTED_S", 0.01)
    server.traffic.on_frame = muting(server, 1_000_000)
    client = server.connect()
    server.send(client, framed(20))
    server.receive(client, 12)
    handles = len(server.loop._scheduled)
    only_connection(server).close_connection()
    server.until(lambda: len(server.loop._scheduled) < handles)


def test_turns_are_measured_on_demand(server, framed):
    found = []
    plain = server.traffic.on_frame
    server.broker.network.measure_turns(lambda peer, elapsed_ns: found.append((peer, elapsed_ns)))
    client = server.connect()
    server.send(client, framed(20))
    server.until(lambda: found)
    ((peer, elapsed_ns),) = found
    assert peer is only_connection(server)
    assert elapsed_ns > 0
    server.broker.network.measure_turns(None)
    assert server.traffic.on_frame == plain
