"""kafka-topics, kafka-get-offsets and kafka-delete-records beside Apache Kafka's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from testbench.clients import Confluent, Record
from tests.interop.kafka_tools.comparison import Comparison

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]


def test_topics(both: Comparison) -> None:
    both.compare(
        "kafka-topics",
        """
        BS --create --topic {name}.a --partitions 2
        BS --create --topic {name}.a --partitions 2
        BS --create --topic {name}.a --if-not-exists
        BS --create --topic {name}b --config segment.bytes=1048576 --config retention.ms=99
        BS --create --topic {name}c --replica-assignment 1,1
        BS --create --topic {name}d --replica-assignment 1,7
        BS --create --topic {name}/d
        BS --create --topic {name}d --replication-factor 3
        BS --list --topic {name}.*
        BS --list --topic {name}nothing
        BS --describe --topic {name}.a
        BS --describe --topic {name}b,{name}nothing
        BS --describe --topic {name}nothing
        BS --describe --topic {name}nothing --if-exists
        BS --describe --topic {name}.a --under-replicated-partitions
        BS --describe --topic {name}.a --unavailable-partitions
        BS --describe --topic {name}.a --at-min-isr-partitions --under-min-isr-partitions
        BS --describe --topic {name}[a-c] --topics-with-overrides
        BS --alter --topic {name}b --partitions 3
        BS --alter --topic {name}b --partitions 2
        BS --alter --topic {name}b --partitions 3
        BS --alter --topic {name}b --partitions 4 --replica-assignment 1,1,1,1
        BS --alter --topic {name}b --partitions 4 --delete-config retention.ms --delete-config x
        BS --describe --topic {name}b --delete-config retention.ms
        BS --alter --topic {name}nothing --partitions 3
        BS --alter --topic {name}nothing --partitions 3 --if-exists
        BS --describe --topic {name}b
        BS --delete --topic {name}nothing
        BS --delete --topic {name}nothing --if-exists
        BS --delete --topic {name}b
        BS --list --topic {name}.* --exclude-internal
        """,
    )


def test_wrong_words_of_topics(both: Comparison) -> None:
    both.compare(
        "kafka-topics",
        """
        BS
        --list
        --help
        BS --list --nonsense
        BS --list --partitions 3
        BS --list --create --topic x
        BS --create
        BS --describe --if-exists
        BS --alter --topic x --partitions 1 --if-not-exists
        BS --delete
        BS --create --topic x --partitions
        BS --create --topic x --partitions a
        BS --create --topic x --partitions 0
        BS --create --topic x --replication-factor 0
        BS --create --topic x --config foo
        BS --create --topic x --replica-assignment 1:1
        BS --create --topic x --replica-assignment 1:2,3
        BS --create --topic x --replica-assignment 1 --partitions 1
        BS --alter --topic x
        BS --alter --topic x --delete-config a
        BS --alter --topic x --partitions 2 --delete-config
        BS --list --create --topic x --delete-config a
        BS --alter --topic x --config a=b
        """,
    )


def test_offsets_and_deletions(both: Comparison, tmp_path: Path) -> None:
    def make(prefix: str) -> None:
        records = [Record(b"k", b"v%d" % number, (), 1_700_000_000_000 + number) for number in range(9)]
        Confluent().write(both.bootstrap, f"{prefix}a", records)
        for file, rows in {
            "good": [{"topic": f"{prefix}a", "partition": 0, "offset": 4}],
            "end": [{"topic": f"{prefix}a", "partition": 0, "offset": -1}],
            "far": [{"topic": f"{prefix}a", "partition": 0, "offset": 400}],
            "twice": [{"topic": f"{prefix}a", "partition": 0, "offset": 1}] * 2,
            "less": [{"topic": f"{prefix}a"}],
        }.items():
            (tmp_path / f"{prefix}{file}").write_text(json.dumps({"partitions": rows, "version": 1}))
        (tmp_path / f"{prefix}broken").write_text('{"partitions":[{')
        (tmp_path / f"{prefix}version").write_text('{"partitions":[],"version":2}')
        (tmp_path / f"{prefix}none").write_text('{"version":1}')

    both.prepare(make)
    offsets = """
        BS --topic {name}a
        BS --topic {name}a --time earliest
        BS --topic {name}a --time -2
        BS --topic {name}a --time max-timestamp
        BS --topic {name}a --time 1700000000005
        BS --topic {name}a --time 1800000000005
        BS --topic {name}a --time earliest-local
        BS --topic {name}a --partitions 0,1
        BS --topic-partitions {name}a:0-2,{name}nothing:1
        """
    both.compare("kafka-get-offsets", offsets)
    deletions = "\n".join(
        f"BS --offset-json-file {tmp_path}/{{name}}{file}"
        for file in ("good", "end", "far", "twice", "less", "broken", "version", "none", "missing")
    )
    both.compare("kafka-delete-records", f"{deletions}\nBS\n--offset-json-file x")
    both.compare("kafka-get-offsets", offsets)


def test_wrong_words_of_offsets(both: Comparison) -> None:
    both.compare(
        "kafka-get-offsets",
        """
        --topic x
        BS --topic {name}nothing
        BS --time foo
        BS --partitions a
        BS --nonsense
        BS --topic x --topic-partitions x:1
        BS --topic-partitions x:y
        """,
    )
