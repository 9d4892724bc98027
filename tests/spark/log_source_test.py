"""`format("ottla-log")` in Spark: a broker's own directory beside what consumers see of it, and Apache Kafka's."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.client import Admin, ClientConfig, Cluster, Consumer, NewTopic, Producer
from ottla.logtable import OttlaLog
from ottla.server.embedded import EmbeddedBroker

EVENTS = Path(__file__).parent.parent / "data" / "file-changes.jsonl.gz"
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
]


def keyed(lines: list[bytes]) -> pa.Table:
    return pa.table({"key": [b"%d" % number for number in range(len(lines))], "value": lines})


def seen_by_consumer(bootstrap: str, isolation: str) -> set[tuple[int, int, bytes]]:
    settings = {"bootstrap.servers": bootstrap, "isolation.level": isolation, "auto.offset.reset": "earliest"}
    found: set[tuple[int, int, bytes]] = set()
    with Consumer(settings) as consumer:
        places = consumer.partitions_for_topic("changes")
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(tp) < ends[tp] for tp in places):
            found |= {(each.partition, each.offset, each.value) for each in consumer.poll(0.5)}
    return found


def test_row_counts_are_those_of_consumers_and_the_rest_is_marked(spark: Any, tmp_path: Path) -> None:
    """Real events: some outside of transactions, the rest in ones that commit, abort, and one that is still open."""
    with gzip.open(EVENTS) as file:
        lines = [line.rstrip() for line in islice(file, 2000)]
    with EmbeddedBroker(str(tmp_path / "data")) as broker:
        settings = {"bootstrap.servers": broker.bootstrap, "compression.type": "zstd", "linger.ms": "50"}
        with Cluster(ClientConfig.from_mapping({"bootstrap.servers": broker.bootstrap})) as cluster:
            configs = {"retention.ms": "-1", "segment.bytes": "16384"}
            Admin(cluster).create_topics([NewTopic("changes", 2, 1, configs)])
        with Producer(settings) as producer:
            producer.send_table("changes", keyed(lines[:500])).result(180)
        with Producer({**settings, "transactional.id": "audit"}) as producer:
            producer.init_transactions()
            for turn in range(5):
                producer.begin_transaction()
                producer.send_table("changes", keyed(lines[500 + 300 * turn : 800 + 300 * turn])).result(180)
                if turn < 4:
                    (producer.abort_transaction if turn % 2 else producer.commit_transaction)()
            changes = spark.read.format("ottla-log").option("topic", "changes").load(str(tmp_path / "data"))
            rows = changes.drop("value").collect()
            for isolation in ("read_uncommitted", "read_committed"):
                reader = spark.read.format("ottla-log").option("isolation", isolation).option("topic", "changes")
                shown = reader.load(str(tmp_path / "data")).select("partition", "offset", "value").collect()
                seen = seen_by_consumer(broker.bootstrap, isolation)
                assert {(row.partition, row.offset, bytes(row.value)) for row in shown} == seen
                assert len(shown) == len(seen) == (2000 if isolation == "read_uncommitted" else 1100)
            producer.abort_transaction()
    assert Counter(row.transaction for row in rows if row.control is None) == {
        None: 500, "committed": 600, "aborted": 600, "open": 300,
    }  # fmt: skip
    assert Counter(row.control for row in rows if row.control) == {"COMMIT": 4, "ABORT": 4}
    assert {row.compression for row in rows} == {"zstd", "none"}
    assert 2 < len({row.segment for row in rows}) <= changes.rdd.getNumPartitions()  # a task for every segment


def test_a_directory_of_apache_kafka_goes_to_parquet(spark: Any, golden: Callable, tmp_path: Path) -> None:
    found = golden("transactions")
    reader = spark.read.format("ottla-log").option("topic", "txn").option("isolation", "read_committed")
    reader.load(str(found.directory)).write.parquet(str(tmp_path / "parquet"))
    kept = spark.read.parquet(str(tmp_path / "parquet")).select("partition", "offset", "key", "value").collect()
    expected = {(each.partition, each.offset, each.key, each.value) for each in found.records("txn.committed")}
    assert {tuple(row) for row in kept} == expected
    assert len(kept) == len(expected)


def test_it_can_be_registered_by_hand_and_names_a_problem(spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(OttlaLog)
    with pytest.raises(Exception, match=r"Option path .* holds no directory of a partition"):
        spark.read.format("ottla-log").load(str(tmp_path)).count()
