"""Records that wait, movers that hand them over, and readers that count: for the tests of the mover.

Zone: real. As a program it is a mover that kills itself: `moving.py BROKER TOPIC REDIS|- STEP`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from ottla.client import Consumer, ConsumerRecord, Producer, TopicPartition
from ottla.retry import EmbeddedScheduler, Mover, RedisScheduler, RetryPolicy
from ottla.retry.headers import Origin, Trail, with_trail
from ottla.retry.routing import Router
from ottla.retry.scheduler import Scheduler

STEPS = ("read", "added", "claimed", "begun", "sent", "offsets", "committed", "done")
QUICK = {"retry.backoff.ms": 20, "reconnect.backoff.ms": 20, "metadata.max.age.ms": 500}


def now_ms() -> int:
    """Of the wall."""
    return time.time_ns() // 1_000_000


def scheduler_of(redis: str | None, topic: str) -> Scheduler:
    """Embedded, or in Redis under the topic's name."""
    return EmbeddedScheduler() if redis is None else RedisScheduler(redis, topic, timeout_s=2.0)


def mover_of(
    broker: str,
    topic: str,
    redis: str | None = None,
    on_step: Callable[[str], object] | None = None,
    instance: str = "1",
    policy: RetryPolicy | None = None,
    scheduler: Scheduler | None = None,
) -> Mover:
    """For the two retry topics of `topic`, in a group of its own."""
    return Mover(
        {"bootstrap.servers": broker, **QUICK},
        scheduler or scheduler_of(redis, topic),
        topics=[f"{topic}.retry.1", f"{topic}.retry.2"],
        group=f"mover-{topic}",
        instance=instance,
        router=Router(policy),
        on_step=on_step,
    )


def wait_here(broker: str, topic: str, dues: Mapping[bytes, int]) -> None:
    """Write records with these values that are due then, as a consumer of `topic` would; keys are values."""
    with Producer({"bootstrap.servers": broker}) as producer:
        for number, (value, due_ms) in enumerate(dues.items()):
            trail = Trail(attempts=2, due_ms=due_ms, first_ms=1, origin=Origin(topic, 0, number))
            headers = with_trail([("own", b"x")], trail)
            producer.send(f"{topic}.retry.{1 + number % 2}", value, key=value, headers=headers)


class Readers:
    """Reads committed records of `topic` and its dead letters, from the start."""

    def __init__(self, broker: str, *topics: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": broker, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        )
        self._consumer.assign([TopicPartition(topic, number) for topic in topics for number in range(2)])
        self.records: list[ConsumerRecord] = []

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def look(self, timeout_s: float = 0.0) -> list[bytes]:
        """Values so far."""
        while found := self._consumer.poll(timeout_s):
            self.records.extend(found)
        return [each.value for each in self.records]


def turn_until(mover: Mover, done: Callable[[], bool], within_s: float = 180) -> None:
    """Run turns until the condition holds."""
    until = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < until, (mover.stats, mover.waiting)
        mover.turn(0.05)


def run_until_killed(broker: str, topic: str, redis: str | None, step: str) -> None:
    """A process that is killed right after the step, while it forwards."""
    command = [sys.executable, "-m", "tests.retry.moving", broker, topic, redis or "-", step]
    done = subprocess.run(command, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.returncode


def main(broker: str, topic: str, redis: str, step: str) -> None:
    """Turn until the step comes."""

    def kill(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with mover_of(broker, topic, None if redis == "-" else redis, kill) as mover:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            mover.turn()


if __name__ == "__main__":
    main(*sys.argv[1:])
