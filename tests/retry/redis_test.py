"""Redis dies, comes back, forgets, while the mover works: nothing lost, nothing early, nothing twice.

Zone: real.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.retry.moving import Readers, mover_of, now_ms, turn_until, wait_here
from tests.retry.redis_server import RedisServer

from ottla.retry import Mover

pytestmark = [pytest.mark.slow, pytest.mark.interop]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server that may be harmed."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.kill()


def killed(server: RedisServer) -> None:
    server.kill()
    server.start()


def lost(server: RedisServer) -> None:
    server.kill(lose=True)
    server.start()


def flushed(server: RedisServer) -> None:
    connection = server.client()
    connection.flushall()
    connection.close()


def partly_lost(server: RedisServer) -> None:
    connection = server.client()
    for key in connection.keys("*:due"):
        connection.zremrangebyrank(key, 0, 20)
    connection.close()


@pytest.mark.parametrize("harm", [killed, lost, flushed, partly_lost], ids=lambda harm: harm.__name__)
def test_whatever_happens_to_redis_each_record_comes_once_and_not_early(
    broker: str, topic: str, own: RedisServer, harm: Callable[[RedisServer], None]
) -> None:
    start = now_ms()
    dues = {b"%d" % n: start + 500 + (n * 7 % 60) * 50 for n in range(100)}
    far = {b"far %d" % n: start + 600_000 for n in range(10)}
    wait_here(broker, topic, dues | far)
    with mover_of(broker, topic, own.url) as mover, Readers(broker, topic, f"{topic}.dead") as readers:
        turn_until(mover, lambda: len(readers.look()) >= 30)
        harm(own)
        late = {b"late %d" % n: now_ms() + 300 for n in range(20)}
        wait_here(broker, topic, late)
        dues |= late
        turn_until(mover, lambda: len(readers.look()) >= len(dues))
        turn_until(mover, lambda: mover.waiting == len(far))
        assert sorted(readers.look(0.3)) == sorted(dues)
        assert all(each.timestamp >= dues[each.value] for each in readers.records)
        assert harm is killed or mover.stats.events["reopened"]


@pytest.mark.parametrize("harm", [killed, lost], ids=lambda harm: harm.__name__)
def test_while_redis_is_down_records_wait_and_a_mover_started_then_continues_when_it_is_back(
    broker: str, topic: str, own: RedisServer, harm: Callable[[RedisServer], None]
) -> None:
    start = now_ms()
    dues = {b"%d" % n: start + 200 + n * 50 for n in range(60)}
    wait_here(broker, topic, dues)
    with Readers(broker, topic) as readers:
        with mover_of(broker, topic, own.url) as mover:
            turn_until(mover, lambda: len(readers.look()) >= 10)
            own.kill(lose=harm is lost)
            late = {b"late %d" % n: now_ms() for n in range(10)}
            wait_here(broker, topic, late)
            turns(mover, 1)
        assert not late.keys() & set(readers.look(0.2))
        with mover_of(broker, topic, own.url) as mover:
            turns(mover, 1)
            assert not late.keys() & set(readers.look())
            own.start()
            dues |= late
            turn_until(mover, lambda: len(readers.look()) >= len(dues))
        assert sorted(readers.look(0.3)) == sorted(dues)
        assert all(each.timestamp >= dues[each.value] for each in readers.records)


def turns(mover: Mover, seconds: float) -> None:
    """For some time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        mover.turn(0.05)
