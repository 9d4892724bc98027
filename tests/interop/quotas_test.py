"""Quotas as real clients and Apache Kafka's tools see them.

Zone: real.
"""

from __future__ import annotations

import socket
import struct
import time

import pytest
from testbench.apache_kafka import tools
from testbench.clients import WAIT_S

from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.messages import AlterClientQuotasRequest

pytestmark = [pytest.mark.interop, pytest.mark.slow]

LARGE = bytes(100_000)


def ask(bootstrap: str, request, version: int):
    """Send one request on a connection of its own."""
    host, _, port = bootstrap.rpartition(":")
    key = request.API_KEY
    frame = encode_request_header(key, version, 1, "test") + encode_bytes(request, version)
    with socket.create_connection((host, int(port)), WAIT_S) as sock:
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        stream = sock.makefile("rb")
        content = memoryview(stream.read(struct.unpack(">i", stream.read(4))[0]))
    response, _ = decode(API_TABLE[key].response, version, content, response_body_pos(key, version, content))
    return response


def set_quota(bootstrap: str, client_id: str | None, name: str, value: float) -> None:
    part = AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name=client_id)
    entry = AlterClientQuotasRequest.EntryData(
        entity=[part], ops=[AlterClientQuotasRequest.OpData(key=name, value=value, remove=False)]
    )
    assert ask(bootstrap, AlterClientQuotasRequest(entries=[entry]), 1).entries[0].error_code == 0


def test_librdkafka_reports_the_throttle_time_of_a_producer(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Producer

    set_quota(bootstrap, topic, "producer_byte_rate", 100_000)
    seen: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap, "client.id": topic, "batch.size": 150_000,
            "throttle_cb": lambda event: seen.append(event.throttle_time),
        }
    )  # fmt: skip
    for _ in range(12):
        producer.produce(topic, LARGE)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    producer.poll(0)
    assert max(seen) > 0.5
    assert max(seen) < 11


def test_a_consumer_is_delayed_and_gets_everything(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": 150_000})
    for _ in range(12):
        producer.produce(topic, LARGE)
    assert producer.flush(WAIT_S) == 0
    set_quota(bootstrap, topic, "consumer_byte_rate", 100_000)
    seen: list[float] = []
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "client.id": topic, "group.id": topic, "enable.auto.commit": False,
            "throttle_cb": lambda event: seen.append(event.throttle_time), "fetch.message.max.bytes": 250_000,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    begin, count = time.monotonic(), 0
    while count < 12 and time.monotonic() < begin + 60:
        found = consumer.poll(1)
        count += found is not None and found.error() is None
    consumer.close()
    assert count == 12
    assert seen
    assert max(seen) > 0.1


def test_kafka_python_reports_the_throttle_time(bootstrap: str, topic: str, caplog) -> None:
    from kafka import KafkaProducer

    set_quota(bootstrap, topic, "producer_byte_rate", 100_000)
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id=topic, batch_size=150_000)
    for future in [producer.send(topic, LARGE) for _ in range(12)]:
        future.get(WAIT_S)
    producer.close(WAIT_S)
    assert "ProduceResponse throttled by broker" in caplog.text


@pytest.mark.kafka
@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_kafka_configs_sets_and_shows_quotas(bootstrap: str, topic: str, version: str) -> None:
    def kafka(*words: str, fails: bool = False) -> str:
        done = tools.run(version, "kafka-configs", *words, "--bootstrap-server", bootstrap)
        assert fails or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    user, client = ("--entity-type", "users", "--entity-name", topic), ("--entity-type", "clients")
    kafka("--alter", *user, "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048")
    kafka("--alter", *user, *client, "--entity-name", "app", "--add-config", "request_percentage=200")
    kafka("--alter", *client, "--entity-name", topic, "--add-config", "controller_mutation_rate=2.5")
    # The tool also asks for SCRAM credentials, which a broker without SASL may not serve.
    shown = kafka("--describe", *user, fails=True)
    assert "producer_byte_rate=1024.0" in shown
    assert "consumer_byte_rate=2048.0" in shown
    assert "request_percentage=200.0" in kafka("--describe", *user, *client, "--entity-name", "app")
    assert "controller_mutation_rate=2.5" in kafka("--describe", *client, "--entity-name", topic)
    kafka("--alter", *user, "--delete-config", "producer_byte_rate")
    assert "producer_byte_rate" not in kafka("--describe", *user, fails=True)
    address = ("--entity-type", "ips", "--entity-name", "203.0.113.7")
    kafka("--alter", *address, "--add-config", "connection_creation_rate=10")
    assert "connection_creation_rate=10.0" in kafka("--describe", *address)
    kafka("--alter", *address, "--delete-config", "connection_creation_rate")
    refused = kafka("--alter", *user, "--add-config", "producer_byte_rate=-1", fails=True)
    assert "must be greater than 0" in refused
