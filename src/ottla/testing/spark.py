"""Tests of queries and pipelines: feed records, run to the end of what is there, read the output.

Zone: real. The broker runs in the test's process. Its clock, by which records of retry topics become due, moves only
when the test moves it: a retry after five minutes takes no time, and none is due by accident.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, Producer
from ottla.client.admin.types import LATEST, TopicCreated
from ottla.client.errors import ClientError, values_of
from ottla.client.fetching.fetch import fetch_range
from ottla.client.records import records_in
from ottla.pipeline import Pipeline, StepProgress
from ottla.pipeline.functions import BatchFunction, RowFunction
from ottla.pipeline.steps import Step
from ottla.retry.headers import read_trail, without_trail
from ottla.server.embedded import EmbeddedBroker
from ottla.spark.environment import activate_session
from ottla.testing.clock import FakeClock
from ottla.types import TopicPartition

Headers = tuple[tuple[str, bytes | None], ...]
Bytes = bytes | str | None

_FEED_S: Final = 60.0
RUN_S: Final = 300.0
"""Default limit for a run."""
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.catalogImplementation": "in-memory",
}


class Input(NamedTuple):
    """A record to feed. Text is written as UTF-8, a mapping or a list as JSON."""

    value: Any
    key: Bytes = None
    headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] = ()
    partition: int | None = None
    """None: as for a producer, by the key, or else in turn."""
    timestamp: int | None = None
    """Milliseconds since 1970; None: the time of the clock."""


class Output(NamedTuple):
    """A committed record of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def value_text(self) -> str | None:
        """The value as text."""
        return None if self.value is None else self.value.decode("utf-8")


class Dead(NamedTuple):
    """A record of a dead-letter topic."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    """Those of the application."""
    error: str
    """The full name of the exception's class, as `builtins.ValueError`."""
    message: str
    failures: int
    """How often it failed."""


def start_session(directory: str | os.PathLike[str], settings: Mapping[str, str] | None = None) -> Any:
    """A small SparkSession for tests, on two cores. It is slow to start: share it, and stop it at the end.

    directory: for Spark's files. settings: of Spark; they replace those for tests. Spark's workers run this Python and
    import from the same places. Raises NoJava.
    """
    from ottla.spark import java_home  # noqa: PLC0415
    from ottla.spark.environment import one_thread_in_planners  # noqa: PLC0415

    java_home()
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    place = Path(directory).resolve()
    with warnings.catch_warnings(), one_thread_in_planners():
        warnings.simplefilter("ignore")  # PySpark warns about new versions of pandas
        from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import

        builder = SparkSession.builder.master("local[2]").appName("tests")
        places = {"spark.local.dir": str(place / "local"), "spark.sql.warehouse.dir": str(place / "warehouse")}
        for key, value in {**_SETTINGS, **places, **(settings or {})}.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()


class EmbeddedTopics:
    """Topics of a broker in this process, and runs of queries and pipelines over them.

        with EmbeddedTopics(spark, tmp_path) as topics:
            topics.feed("orders", ['{"item": "tea"}'])
            topics.run_pipeline(shop)
            assert topics.values("priced") == [...]

    spark: the session. directory: for checkpoints and the broker's data; it is not removed. start_ms: the time at which
    the clock begins, in milliseconds since 1970; None: now. A run continues from the checkpoint of the last one.
    """

    def __init__(self, spark: Any, directory: str | os.PathLike[str], start_ms: int | None = None) -> None:
        self.spark = spark
        self.clock = FakeClock(time.time_ns() // 1_000_000 if start_ms is None else start_ms)
        """The clock of the broker and of pipelines that `run_pipeline` runs; it moves by `advance` only."""
        self._directory = Path(directory).resolve()
        config = {"group.initial.rebalance.delay.ms": "0", "log.retention.check.interval.ms": str(2**31 - 1)}
        self._broker = EmbeddedBroker(self._directory / "broker", config, read_wall_ms=lambda: self.clock.now_ms)
        self._cluster: Cluster | None = None

    def __enter__(self) -> EmbeddedTopics:
        self._broker.start()
        settings = {"bootstrap.servers": self.bootstrap, "isolation.level": "read_committed"}
        self._cluster = Cluster(ClientConfig.from_mapping(settings))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cluster is not None:
            self._cluster.close()
        self._broker.stop()

    @property
    def bootstrap(self) -> str:
        """host:port, for clients."""
        return self._broker.bootstrap

    @property
    def options(self) -> dict[str, str]:
        """The option of `format("ottla")` that names the broker."""
        return {"kafka.bootstrap.servers": self.bootstrap}

    @property
    def cluster(self) -> Cluster:
        """A client of the broker, which reads committed records."""
        assert self._cluster is not None, "use EmbeddedTopics in a with statement"
        return self._cluster

    # -- records -----------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic. Raises ClientError."""
        answer = Admin(self.cluster).create_topics([NewTopic(topic, partitions, 1, configs or {})])[topic]
        if not isinstance(answer, TopicCreated):
            raise answer
        self.cluster.topic(topic, create=True)  # waits until the broker shows it

    def feed(self, topic: str, records: Iterable[Input | Any], partitions: int = 1) -> None:
        """Write records, and wait for the broker. A missing topic is created with this number of partitions.

        A record is its value (bytes, text, None, or a mapping or list, written as JSON), or an `Input`. Those without
        partition and key go to the partitions in turn. Raises ClientError.
        """
        if all(view.name != topic for view in Admin(self.cluster).list_topics()):
            self.create_topic(topic, partitions)
        count = len(self._partitions(topic))
        with Producer({"bootstrap.servers": self.bootstrap}) as producer:
            sent = []
            for number, each in enumerate(records):
                one = each if isinstance(each, Input) else Input(each)
                place = number % count if one.partition is None and one.key is None else one.partition
                at_ms = self.clock.now_ms if one.timestamp is None else one.timestamp
                value, key = _encode_value(one.value), _encode_value(one.key)
                sent.append(producer.send(topic, value, key=key, headers=one.headers, partition=place, timestamp=at_ms))
            for future in sent:
                future.result(_FEED_S)

    def records(self, topic: str) -> list[Output]:
        """The committed records of a topic, partition by partition. Raises ClientError, also for an unknown topic."""
        ends = values_of(Admin(self.cluster).list_offsets(dict.fromkeys(self._partitions(topic), LATEST)))
        return [
            Output(topic, tp.partition, record.offset, record.timestamp, record.key, record.value, record.headers)
            for tp, end in ends.items()
            for fetched in fetch_range(self.cluster, tp, 0, end.offset)
            for record in records_in(fetched)
        ]

    def values(self, topic: str) -> list[str | None]:
        """The values of the committed records as text."""
        return [record.value_text for record in self.records(topic)]

    def documents(self, topic: str) -> list[Any]:
        """The values of the committed records, parsed as JSON; None for a null. Raises ValueError for other text."""
        return [None if text is None else json.loads(text) for text in self.values(topic)]

    def dead_letters(self, topic: str) -> list[Dead]:
        """The records of a dead-letter topic, with the reasons. Raises ClientError, also for an unknown topic."""
        found = []
        for record in self.records(topic):
            trail = read_trail(record.headers)
            error, message = (trail.failure.kind, trail.failure.message) if trail.failure is not None else ("", "")
            own = without_trail(record.headers)
            found.append(Dead(record.value, record.key, own, error, message, trail.failures))
        return found

    def frame(self, topic: str) -> Any:
        """The topic as a DataFrame with the columns of the source, `headers` included."""
        return self._read(self.spark.read, topic)

    # -- runs --------------------------------------------------------------------------------------------------------

    def read_stream(self, *topics: str) -> Any:
        """A streaming DataFrame over topics from their beginning, with the columns of the source."""
        return self._read(self.spark.readStream, *topics)

    def write_stream(self, frame: Any, topic: str) -> Any:
        """The writer of a streaming DataFrame to a topic, for `run_query`."""
        return frame.writeStream.format("ottla").options(**self.options, topic=topic)

    def run_query(self, writer: Any, name: str = "query", timeout: float = RUN_S) -> list[dict[str, Any]]:
        """Run a query to the end of what is there; the progress of its batches that had rows.

        writer: a DataStreamWriter, of this helper or your own. name: of its checkpoint; the same name continues it.
        Raises Spark's error of the query, and TimeoutError after `timeout` seconds.
        """
        activate_session(self.spark)
        checkpoint = str(self._directory / "checkpoints" / name)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        try:
            if not query.awaitTermination(timeout):
                raise TimeoutError(f"the query {name} has not ended within {timeout:g} s")
        finally:
            query.stop()
        return [json.loads(one.json) for one in query.recentProgress if one.numInputRows]

    def run_pipeline(self, pipeline: Pipeline, timeout: float = RUN_S) -> list[StepProgress]:
        """Run the steps of a pipeline, one after the other, to the end of what is there and due; their figures.

        The pipeline runs on this broker, whatever brokers it names. Raises BadPipeline, StepFailed, ClientError, and
        TimeoutError after `timeout` seconds.
        """
        for step in pipeline.steps:
            _send_module(step)
        # The source reads up to the first record that is as old as the delay: a millisecond later that one is due.
        due = {"topicDelaysAt": str(self.clock.now_ms + 1)}
        here = pipeline.with_changed_steps(
            lambda step: replace(step, options={**step.options, **due}), {"bootstrap.servers": self.bootstrap}
        )
        checkpoint = str(self._directory / "checkpoints" / pipeline.name)
        return here.with_present_lag(here.start(checkpoint, spark=self.spark).wait(timeout))

    def _partitions(self, topic: str) -> list[TopicPartition]:
        view = Admin(self.cluster).describe_topics([topic])[topic]
        if isinstance(view, ClientError):
            raise view
        return [TopicPartition(topic, number) for number in view.partitions]

    def _read(self, reader: Any, *topics: str) -> Any:
        options = {"subscribe": ",".join(topics), "startingOffsets": "earliest", "includeHeaders": "true"}
        return reader.format("ottla").options(**self.options, **options).load()


def _encode_value(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8")


def _send_module(step: Step) -> None:
    """Pickle the functions of a step's module by value: Spark's workers need not be able to import it."""
    from pyspark import cloudpickle  # noqa: PLC0415

    function = step.function
    inner = function.function if isinstance(function, RowFunction | BatchFunction) else function
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    if module is not None and "site-packages" not in (getattr(module, "__file__", None) or "site-packages"):
        cloudpickle.register_pickle_by_value(module)
