"""A broker, topics, and one Spark for all tests of the PySpark half."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from testbench.apache_kafka.broker import KafkaNode
from testbench.apache_kafka.packages import BenchError, connector_jars
from testbench.retention import NO_RETENTION
from tests.spark.attempts import Bench

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import NewTopic, TopicCreated
from ottla.client.batch_transaction import ConnectionCache
from ottla.client.cluster import Cluster
from ottla.client.errors import values_of
from ottla.client.fetching.fetch import fetch_range
from ottla.client.produce import Appended, Sender
from ottla.client.records import records_in
from ottla.client.settings import ClientConfig
from ottla.record.batch import BatchHeader, Record, batches_of, encode_batch
from ottla.server.embedded import EmbeddedBroker
from ottla.types import TopicPartition

NOT_OURS = ("ignore:PySpark does not yet fully support pandas:FutureWarning", "ignore::ResourceWarning")
"""PySpark warns about new versions of pandas; py4j leaves its sockets to the garbage collector."""

KAFKA_MARKS = [pytest.mark.kafka]
_numbers = count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings that are PySpark's, not ours."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("spark") is not None:
            for warning in NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(warning))


class Topics:
    """Topics of a broker, with the plain client: nothing of the columnar side."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.options = {"kafka.bootstrap.servers": bootstrap}
        settings = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed"}
        self._cluster = Cluster(ClientConfig.from_mapping(settings))
        self._numbers = count()

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    def admin(self) -> Admin:
        return Admin(self._cluster)

    def make(self, partitions: int = 1, **configs: str) -> str:
        """A new topic; configs with `_` for `.`. Nothing is deleted for its age: the records of tests are old.

        Names have one width: topics sort in the order in which they were made, also after the tenth.
        """
        name = f"t{os.getpid()}-{next(self._numbers):04}"
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.make_again(name, partitions, {"retention.ms": "-1", **named})
        return name

    def make_again(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        answer = self.admin().create_topics([NewTopic(name, partitions, 1, configs or {})])[name]
        assert isinstance(answer, TopicCreated), answer
        self._cluster.topic(name, create=True)  # waits until the broker shows it

    def put(self, topic: str, partition: int, values: Sequence[bytes], *, codec: int = 0, at_ms: int = 1000) -> None:
        """Records without a key, in one batch; the timestamp of each is one more than the last one's."""
        self.put_records(topic, partition, [Record(n, at_ms + n, None, value) for n, value in enumerate(values)], codec)

    def put_records(self, topic: str, partition: int, records: Sequence[Record], codec: int = 0) -> None:
        tp = TopicPartition(topic, partition)
        answer = Sender(self._cluster).send({tp: encode_batch(records, codec=codec)})[tp]
        assert isinstance(answer, Appended), answer

    def records(self, topic: str) -> dict[int, list[Record]]:
        """All records of a topic, by partition."""
        view = self._cluster.topic(topic)
        places = [TopicPartition(topic, number) for number in view.partitions]
        ends = self.admin().list_offsets(dict.fromkeys(places, -1))
        return {
            tp.partition: [
                record
                for fetched in fetch_range(self._cluster, tp, 0, ends[tp].offset)
                for record in records_in(fetched)
            ]
            for tp in places
        }

    def headers(self, topic: str) -> list[BatchHeader]:
        """The batch headers of partition 0."""
        tp = TopicPartition(topic, 0)
        end = self.admin().list_offsets({tp: -1})[tp].offset
        fetched = fetch_range(self._cluster, tp, 0, end)
        return [header for one in fetched for _, header in batches_of(one.records)]

    def values(self, topic: str) -> list[bytes | None]:
        """All values of a topic, partition by partition."""
        return [record.value for records in self.records(topic).values() for record in records]

    def close(self) -> None:
        self._cluster.close()


@pytest.fixture(scope="session")
def topics() -> Iterator[Topics]:
    with EmbeddedBroker(config=NO_RETENTION) as broker:
        found = Topics(broker.bootstrap)
        yield found
        found.close()


def jars() -> list[Path]:
    """Of Spark's own `format("kafka")`; none where they were not fetched: only tests of it need them."""
    with contextlib.suppress(BenchError):
        return connector_jars()
    return []


@pytest.fixture(scope="session")
def one_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A SparkSession as a user's own script makes it, with one line more; and with Kafka jars that were fetched."""
    from ottla.spark import java_home

    java_home()
    root = str(Path(__file__).parents[2])  # the workers also import the test bench
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONWARNINGS="ignore")
    place = tmp_path_factory.mktemp("spark")
    logging = place / "log4j2.properties"
    logging.write_text("rootLogger.level = off\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark warns about new versions of pandas
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").appName("tests")
        for key, value in {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(place / "local"),
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.jars": ",".join(map(str, jars())),
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{logging} -XX:TieredStopAtLevel=1",
        }.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def spark(one_spark: Any) -> Any:
    """The session of all tests. A call that was interrupted (a test that took too long) takes the JVM's thread with it,
    and a new thread has no active session: without this every later test that writes would also fail."""
    assert len(os.listdir("/proc/self/fd")) < 1000, "py4j's select() takes none from 1,024 on, and hangs"
    assert one_spark.conf.get("spark.sql.shuffle.partitions") == "2", "a test before changed it; 200 tasks take long"
    one_spark._jvm.SparkSession.setActiveSession(one_spark._jsparkSession)
    return one_spark


@pytest.fixture
def run_stream(spark: Any, topics: Topics, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run a query topic → topic to its end over a checkpoint of this test; its progress comes back."""

    def run(source: str, sink: str, checkpoint: str = "checkpoint", **options: str) -> list[dict[str, Any]]:
        query = (
            spark.readStream.format("ottla")
            .options(**topics.options, subscribe=source, **{"startingOffsets": "earliest", **options})
            .load()
            .select("key", "value")
            .writeStream.format("ottla")
            .options(**topics.options, topic=sink, checkpointLocation=str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    return run


@pytest.fixture(scope="session")
def ottla_broker(topics: Any) -> str:
    return str(topics.bootstrap)


@pytest.fixture(scope="session")
def kafka_2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    with KafkaNode(tmp_path_factory.mktemp("kafka")) as node:
        yield node


@pytest.fixture(scope="session")
def kafka_1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    """Where the cluster has not settled on version 2 of the protocol."""
    node = KafkaNode(tmp_path_factory.mktemp("kafka"))
    node.format_options = ["--feature", "transaction.version=1"]
    with node:
        yield node


@pytest.fixture(
    params=["ottla_broker", pytest.param("kafka_2", marks=KAFKA_MARKS), pytest.param("kafka_1", marks=KAFKA_MARKS)]
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bootstrap = request.getfixturevalue(request.param)
    if isinstance(bootstrap, KafkaNode):
        bootstrap.must_live()
        bootstrap = bootstrap.bootstrap
    topic = f"once-{os.getpid()}-{next(_numbers)}"
    links = ConnectionCache(ClientConfig(bootstrap_servers=bootstrap))
    values_of(Admin(links.cluster).create_topics([NewTopic(topic, 3, 1, {})]))
    links.cluster.topic(topic, create=True)
    links.close_connections()
    made = Bench(bootstrap, topic, f"query-{topic}")
    yield made
    made.close()
