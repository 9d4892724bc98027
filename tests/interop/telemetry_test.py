"""Metrics that librdkafka and Java clients push, and Apache Kafka's tool for subscriptions (KIP-714).

Zone: real.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from testbench.apache_kafka import tools
from testbench.clients import WAIT_S

from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def broker():
    """A broker that serves /metrics."""
    with EmbeddedBroker(config={"ottla.http.listener": "127.0.0.1:0"}) as running:
        yield running


def pushed(broker, client_id: str) -> list[str]:
    """The lines of /metrics with what a client has pushed."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=WAIT_S)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return [line for line in lines if line.startswith("kafka_client_telemetry{") and f'client_id="{client_id}"' in line]


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.05)


@contextmanager
def watched(broker, client_id: str) -> Iterator[list[str]]:
    """The lines of a client that pushes within the block: those of one that has ended are soon shown no more."""
    lines: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            lines.extend(pushed(broker, client_id))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lines
    finally:
        over.set()
        watcher.join()


def subscribe(broker, name: str, client_id: str, interval_ms: int = 100) -> None:
    run_tool(
        broker, "4.4.0", "--alter", "--name", name, "--metrics", "*", "--interval", str(interval_ms),
        "--match", f"client_id={client_id}",
    )  # fmt: skip


def run_tool(broker, version: str, *words: str) -> str:
    done = tools.run(version, "kafka-client-metrics", *words, "--bootstrap-server", broker.bootstrap)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.kafka
@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_kafka_client_metrics(broker, version: str) -> None:
    name = f"tool-{version}"
    words = ("--metrics", "org.apache.kafka.consumer.", "--interval", "60000", "--match", "client_id=app.*")
    run_tool(broker, version, "--alter", "--name", name, *words)
    assert name in run_tool(broker, version, "--list")
    shown = run_tool(broker, version, "--describe", "--name", name)
    assert "interval.ms=60000" in shown
    assert "client_id=app.*" in shown
    run_tool(broker, version, "--delete", "--name", name)
    assert name not in run_tool(broker, version, "--list")


@pytest.mark.kafka
def test_librdkafka_pushes_its_metrics(broker) -> None:
    from confluent_kafka import Producer

    subscribe(broker, "librdkafka", "librdkafka-app")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "librdkafka-app"})
    producer.produce("telemetry", b"v")
    assert producer.flush(WAIT_S) == 0
    wait_for(lambda: bool(pushed(broker, "librdkafka-app")))
    lines = pushed(broker, "librdkafka-app")
    assert any('metric="org.apache.kafka.producer.connection.creation.total"' in line for line in lines)
    assert all('client_software_name="confluent-kafka-python"' in line for line in lines)


@pytest.mark.kafka
@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_java_pushes_its_metrics(broker, version: str) -> None:
    client_id = f"java-{version}"
    subscribe(broker, client_id, client_id, 1_000)
    properties = ("--producer-props", f"bootstrap.servers={broker.bootstrap}", f"client.id={client_id}")
    sizes = ("--topic", "telemetry", "--num-records", "300", "--record-size", "100", "--throughput", "100")
    with watched(broker, client_id) as lines:
        done = tools.run(version, "kafka-producer-perf-test", *sizes, *properties)
    assert done.returncode == 0, done.stdout + done.stderr
    assert any('metric="org.apache.kafka.producer.' in line for line in lines), lines
