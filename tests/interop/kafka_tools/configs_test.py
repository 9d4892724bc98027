"""kafka-configs beside Apache Kafka's own."""

from __future__ import annotations

import pytest
from tests.interop.kafka_tools.comparison import Comparison

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]


def test_topics_and_brokers(both: Comparison) -> None:
    both.compare("kafka-topics", "BS --create --topic {name}a")
    topic = "--entity-type topics --entity-name {name}a"
    both.compare(
        "kafka-configs",
        f"""
        BS --alter {topic} --add-config retention.ms=5000000,cleanup.policy=[delete,compact]
        BS --describe {topic}
        BS --describe --topic {{name}}a
        BS --describe {topic} --all
        BS --describe --entity-type topics --entity-name {{name}}nothing
        BS --alter {topic} --delete-config retention.ms
        BS --alter {topic} --delete-config retention.bytes
        BS --alter --topic {{name}}a --add-config nonsense=1
        BS --alter --topic {{name}}a --add-config retention.ms=abc
        BS --describe {topic}
        BS --alter --entity-type brokers --entity-default --add-config log.cleaner.threads=2
        BS --describe --entity-type brokers --entity-default
        BS --alter --broker-defaults --delete-config log.cleaner.threads
        BS --alter --broker 1 --add-config log.cleaner.threads=2
        BS --describe --entity-type brokers --entity-name 1
        BS --describe --broker 1
        BS --describe --entity-type brokers
        BS --alter --broker 1 --delete-config log.cleaner.threads
        BS --describe --entity-type groups --entity-name {{name}}g
        """,
    )
    both.compare("kafka-configs", "BS --describe --entity-type topics", same_words=True, ordered=False)


def test_quotas_and_passwords(both: Comparison) -> None:
    alice = "--entity-type users --entity-name {name}al"
    bob = "--entity-type users --entity-name {name}bob"
    both.compare(
        "kafka-configs",
        f"""
        BS --alter {alice} --add-config producer_byte_rate=1024,consumer_byte_rate=20971520
        BS --describe {alice}
        BS --describe --user {{name}}al
        BS --alter {alice} --entity-type clients --entity-name c1 --add-config request_percentage=50
        BS --describe {alice} --entity-type clients
        BS --alter {alice} --delete-config producer_byte_rate
        BS --describe {alice}
        BS --alter --entity-type users --entity-default --add-config producer_byte_rate=1024
        BS --describe --entity-type users --entity-default
        BS --alter --user-defaults --delete-config producer_byte_rate
        BS --alter --entity-type clients --entity-name {{name}}c --add-config producer_byte_rate=0.5
        BS --describe --entity-type clients --entity-name {{name}}c
        BS --describe --entity-type clients --entity-name {{name}}nothing
        BS --alter --entity-type clients --entity-name {{name}}c --add-config nonsense=5
        BS --alter {bob} --add-config SCRAM-SHA-256=[iterations=8192,password=secret]
        BS --describe {bob}
        BS --alter {bob} --delete-config SCRAM-SHA-256
        BS --alter {bob} --delete-config SCRAM-SHA-256
        BS --alter --entity-type ips --entity-name 10.0.0.1 --add-config connection_creation_rate=5
        BS --describe --entity-type ips
        BS --describe --ip 10.0.0.1
        BS --alter --ip 10.0.0.1 --delete-config connection_creation_rate
        """,
    )


def test_wrong_words_of_configs(both: Comparison) -> None:
    both.compare(
        "kafka-configs",
        """
        BS
        BS --describe
        BS --nonsense
        --describe --entity-type topics
        BS --describe --entity-type nonsense
        BS --alter --entity-type topics --entity-name a
        BS --alter --entity-type topics --entity-name a --add-config nonsense
        BS --alter --entity-type topics --entity-name a --add-config
        BS --alter --entity-type topics --add-config a=b
        BS --alter --entity-type brokers --entity-name x --add-config a=b
        BS --alter --entity-type broker-loggers --entity-name 1 --add-config kafka.nothing=INFO
        """,
    )


TYPES = {
    "topics": "t", "clients": "c", "users": "u", "brokers": "1", "broker-loggers": "1", "ips": "10.0.0.2",
    "client-metrics": "m", "groups": "g",
}  # fmt: skip
"""Types of entities, and a name of each."""


@pytest.mark.parametrize("kind", TYPES)
def test_types_and_names_that_do_not_fit(both: Comparison, kind: str) -> None:
    """Each would be about another entity than the script means."""
    type_, name, default = f"--entity-type {kind}", f"--entity-name {TYPES[kind]}", "--entity-default"
    other = "--entity-type users --entity-name u" if kind != "users" else "--entity-type ips"
    lines = [f"{type_} {name} {default}", f"{default} {type_}", f"{type_} {name} {name}", f"{type_} {type_} {name}"]
    lines += [f"{type_} {name} {other}", f"{type_} {name} --user u", f"{type_} {name} --entity-type topics"]
    refused = [f"BS --alter --add-config a=b {each}" for each in (*lines, type_)]
    refused += [f"BS --describe {each}" for each in lines if kind in ("brokers", "users") or each != lines[1]]
    both.compare("kafka-configs", "\n".join(refused))


def test_a_default_has_a_place_among_the_names(both: Comparison) -> None:
    one = "--entity-type users --entity-default --entity-type clients --entity-name {name}c"
    other = "--entity-type clients --entity-name {name}c --entity-type users --entity-default"
    both.compare(
        "kafka-configs",
        f"""
        BS --alter {one} --add-config producer_byte_rate=7
        BS --describe {one}
        BS --describe {other}
        BS --alter {other} --delete-config producer_byte_rate
        BS --describe {one}
        """,
    )
