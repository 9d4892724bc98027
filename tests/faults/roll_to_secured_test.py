"""docs/security.md, "From plain to secured": rolling restarts under a producer and a group, which notice nothing.

Zone: real.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from testbench.cluster import OttlaServer
from testbench.ports import free_port
from testbench.trio import Trio, trio

pytestmark = [pytest.mark.slow, pytest.mark.interop]

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
TOPIC, GROUP, PARTITIONS = "orders", "warehouse", 4
WAIT_S = 120
PLAIN = {
    "offsets.topic.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    # A broker that stops ends its session; on a busy machine a short one would expire in between.
    "zookeeper.session.timeout.ms": "30000",
}
CLIENT = {"log_level": 0, "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 2_000}


def block_of(step: int) -> list[str]:
    """The first block of a step on the page."""
    section = PAGE.read_text().partition(f"### Step {step}: ")[2].partition("\n#")[0]
    found = re.search(r"(?:^    .+\n)+", section, re.MULTILINE)
    assert found, f"step {step} has a block"
    return [line.strip() for line in found[0].splitlines()]


def await_true(what: str, true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.02)


class Writing(threading.Thread):
    """An idempotent producer of numbers, from `first` on, until `finish`."""

    def __init__(self, settings: dict[str, Any], first: int = 0) -> None:
        super().__init__(daemon=True)
        self.next = first
        self.acknowledged: set[int] = set()
        self.errors: list[str] = []
        self._ending = threading.Event()
        own = {"enable.idempotence": True, "acks": "all", "linger.ms": 5, "message.timeout.ms": 600_000}
        self._client = Producer({**CLIENT, **own, **settings, "error_cb": self._on_error})
        self.start()

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in REFUSALS:
            self.errors.append(str(error))

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged.add(int(message.value()))
        else:
            self.errors.append(str(error))

    def run(self) -> None:
        while not self._ending.wait(0.005):
            self._client.produce(
                TOPIC, b"%d" % self.next, partition=self.next % PARTITIONS, on_delivery=self._on_delivery
            )
            self.next += 1
            self._client.poll(0)
        self._client.flush(WAIT_S)

    def finish(self) -> None:
        self._ending.set()
        self.join(WAIT_S)
        assert not self.is_alive()


class Reading(threading.Thread):
    """A member of the group, until `finish`. It notes what was read at which offset."""

    def __init__(self, settings: dict[str, Any], seen: dict[tuple[int, int], int]) -> None:
        super().__init__(daemon=True)
        self.seen = seen
        self.errors: list[str] = []
        self._ending = threading.Event()
        own = {"group.id": GROUP, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500}
        self._client = Consumer({**CLIENT, **own, **settings, "error_cb": self._on_error})
        self._client.subscribe([TOPIC])
        self.start()

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() in REFUSALS:
            self.errors.append(str(error))

    def run(self) -> None:
        while not self._ending.is_set():
            message = self._client.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                self._on_error(message.error())
                continue
            place, number = (message.partition(), message.offset()), int(message.value())
            if self.seen.setdefault(place, number) != number:
                self.errors.append(f"{place} was {self.seen[place]} and is {number}")
        self._client.close()

    def finish(self) -> None:
        self._ending.set()
        self.join(WAIT_S)
        assert not self.is_alive()


REFUSALS = (
    KafkaError._AUTHENTICATION,
    KafkaError._FATAL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.OFFSET_OUT_OF_RANGE,
)


class Roll:
    """A plain cluster with a producer and a group, and its way through the steps."""

    def __init__(self, cluster: Trio, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.servers = [each for each in cluster.brokers if isinstance(each, OttlaServer)]
        self.ports = [(each.port, free_port()) for each in self.servers]
        self.passwords = {"admin": secrets.token_hex(24), "digest": f"ottla:{secrets.token_hex(24)}"}
        topic = NewTopic(TOPIC, PARTITIONS, 3)
        cluster.admin.create_topics([topic], operation_timeout=30)[TOPIC].result(60)
        self.seen: dict[tuple[int, int], int] = {}
        plain = {"bootstrap.servers": cluster.bootstrap}
        self.writers, self.readers = [Writing(plain)], [Reading(plain, self.seen)]
        self.await_progress()

    def ottla(self, *words: str) -> None:
        """A command of the page."""
        command = [sys.executable, "-m", "ottla", *words]
        variables = {**os.environ, "OTTLA_BROKERS": self.cluster.bootstrap}
        done = subprocess.run(
            command, cwd=self.directory, env=variables, capture_output=True, check=False, timeout=WAIT_S
        )
        assert done.returncode == 0, done.stderr.decode()

    def write_files(self) -> None:
        """What the page lets its reader create first."""
        self.ottla("tls", "make", "certificates")
        for name, key in (("users", "admin"), ("store", "digest")):
            path = self.directory / name
            path.touch(0o600)
            path.write_text(f"{key}={self.passwords[key]}\n")

    def restart_all(self, step: int) -> None:
        """Give each broker in turn the properties of a step."""
        for server, (plain, secured) in zip(self.servers, self.ports, strict=True):
            lines = [
                line.replace("/srv/ottla", str(self.directory))
                .replace(":9092", f":{plain}")
                .replace(":9093", f":{secured}")
                for line in block_of(step)
            ]
            server.stop()
            server.configure({key: value for key, _, value in (line.partition("=") for line in lines)})
            server.start()
            self.cluster.wait_whole(TOPIC, "__consumer_offsets")
            self.await_progress()

    def settings_of(self, user: str, password: str) -> dict[str, str]:
        """librdkafka's settings at the secured listeners."""
        return {
            "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for _, port in self.ports),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.directory / "certificates" / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
        }

    def move_clients(self) -> None:
        """Step 2: the commands of the page, then the clients one after the other."""
        for line in block_of(2):
            self.ottla(*shlex.split(line)[1:])
        self.passwords["shop"] = (self.directory / "shop.password").read_text().strip()
        secured = self.settings_of("shop", self.passwords["shop"])
        self.readers.append(Reading(secured, self.seen))
        self.writers[0].finish()
        self.writers.append(Writing(secured, self.writers[0].next))
        self.await_progress()
        self.readers[0].finish()
        self.await_progress()
        boss = self.settings_of("admin", self.passwords["admin"])
        self.cluster.connect(boss["bootstrap.servers"], boss)

    def await_progress(self) -> None:
        """Wait until a record that is written from now on was acknowledged and read."""
        writer = self.writers[-1]
        goal = writer.next
        await_true(f"record {goal} is acknowledged", lambda: goal in writer.acknowledged or bool(self.errors()))
        await_true(f"record {goal} is read", lambda: goal in self.seen.copy().values() or bool(self.errors()))
        assert not self.errors()

    def errors(self) -> list[str]:
        return [error for client in (*self.writers, *self.readers) for error in client.errors]

    def finish(self) -> None:
        """End the clients when the group has read everything."""
        self.writers[-1].finish()
        acknowledged = self.acknowledged()
        await_true("the group has read all", lambda: acknowledged <= set(self.seen.copy().values()))
        self.readers[-1].finish()

    def acknowledged(self) -> set[int]:
        return {number for writer in self.writers for number in writer.acknowledged}


@pytest.fixture
def roll(tmp_path: Path) -> Iterator[Roll]:
    with trio("zookeeper", tmp_path, PLAIN) as cluster:
        yield Roll(cluster, tmp_path)


def test_a_cluster_is_secured_while_clients_work(roll: Roll) -> None:
    roll.write_files()
    roll.restart_all(1)
    roll.move_clients()
    for step in (3, 4, 5):
        roll.restart_all(step)
    roll.finish()
    assert not roll.errors()
    numbers = sorted(roll.seen.values())
    assert numbers == list(range(roll.writers[-1].next)), "each record is in the log once"
    assert roll.acknowledged() == set(numbers)
    assert not roll.cluster.complaints()
    logs = "".join(log.read_text(errors="replace") for log in roll.directory.glob("*.log"))
    assert not [name for name, secret in roll.passwords.items() if secret.rpartition(":")[2] in logs]
    check_nodes(roll)


def check_nodes(roll: Roll) -> None:
    """What the brokers create since step 5 can be changed with their digest only."""
    roll.cluster.admin.create_topics([NewTopic("later", 1, 3)], operation_timeout=30)["later"].result(60)
    stranger = KazooClient(roll.cluster.store)
    stranger.start(20)
    try:
        assert stranger.get("/brokers/topics/later")[0]
        with pytest.raises(NoAuthError):
            stranger.set("/brokers/topics/later", b"{}")
    finally:
        stranger.stop()
        stranger.close()
