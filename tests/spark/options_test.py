"""Every option of Spark's Kafka source and sink: accepted with its meaning, or refused by name with the reason."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from ottla.spark import kafka_keys
from ottla.spark.errors import BadOption
from ottla.spark.option_values import EARLIEST, LATEST
from ottla.spark.options import Position, SourceOptions, source_options
from ottla.spark.sink.sink_options import SinkOptions, sink_options
from ottla.types import TopicPartition

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "a"}
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def batch(**options: str) -> SourceOptions:
    return source_options({**BASE, **options}, streaming=False)


def stream(**options: str) -> SourceOptions:
    return source_options({**BASE, **options}, streaming=True)


def sink(options: Mapping[str, str] | None = None) -> SinkOptions:
    return sink_options({"kafka.bootstrap.servers": "127.0.0.1:9092", **(options or {})})


def refused(name: str, options: Mapping[str, str], *, streaming: bool = False, text: str = "") -> None:
    with pytest.raises(BadOption, match=text) as caught:
        source_options({"kafka.bootstrap.servers": "127.0.0.1:9092", **options}, streaming=streaming)
    assert caught.value.name == name
    assert str(caught.value).startswith(f"Option {name} ")


def test_the_defaults_are_sparks() -> None:
    found = stream()
    assert found.start == Position(everywhere=LATEST)
    assert batch().start == Position(everywhere=EARLIEST)
    assert batch().end == Position(everywhere=LATEST)
    assert found.fail_on_data_loss
    assert not found.include_headers
    assert (found.min_partitions, found.max_records_per_partition) == (None, None)
    assert (found.max_offsets_per_trigger, found.min_offsets_per_trigger) == (None, None)
    assert found.max_trigger_delay_ms == 15 * 60_000
    assert (found.poll_timeout_ms, found.fetch_retries, found.fetch_retry_interval_ms) == (120_000, 3, 10)


def test_only_committed_records_are_read_by_default() -> None:
    assert batch().client.isolation_level == "read_committed"
    assert batch(**{"kafka.isolation.level": "read_uncommitted"}).client.isolation_level == "read_uncommitted"


def test_options_go_to_tasks_as_they_are() -> None:
    found = batch(startingOffsets='{"a":{"0":1}}')
    assert pickle.loads(pickle.dumps(found)) == found
    assert pickle.loads(pickle.dumps(sink({"topic": "t"}))) == sink({"topic": "t"})
    error = pickle.loads(pickle.dumps(BadOption("a", "is odd")))
    assert (error.name, str(error)) == ("a", "Option a is odd")


def test_names_are_read_without_regard_to_case() -> None:
    assert batch(INCLUDEHEADERS="TRUE", MinPartitions=" 4 ").include_headers
    assert batch(MinPartitions=" 4 ").min_partitions == 4


def test_bootstrap_servers_are_needed() -> None:
    with pytest.raises(BadOption, match=r"kafka\.bootstrap\.servers is missing"):
        source_options({"subscribe": "a"}, streaming=False)
    with pytest.raises(BadOption, match=r"kafka\.bootstrap\.servers is missing"):
        sink_options({"topic": "a"})


def test_topics_are_named_in_one_of_three_ways() -> None:
    assert batch(subscribe=" b, a ,,b").topics.subscribe == ("b", "a")
    kafka = {"kafka.bootstrap.servers": "h:1"}
    assigned = source_options({**kafka, "assign": '{"a":[1,0],"b":[2]}'}, streaming=True).topics.assign
    assert assigned == (A0, A1, TopicPartition("b", 2))
    pattern = source_options({**kafka, "subscribePattern": "a.*"}, streaming=True).topics.pattern
    assert pattern is not None
    assert pattern.fullmatch("abc")
    refused("subscribe", {}, text="missing")
    refused("subscribe", {"subscribe": "a", "assign": '{"a":[0]}'}, text="assign exclude each other")
    refused("subscribe", {"subscribe": " , "}, text="at least one")
    refused("subscribePattern", {"subscribePattern": "("}, text="pattern")
    refused("subscribePattern", {"subscribePattern": " "}, text="empty")


@pytest.mark.parametrize("text", ["a", "[]", "{}", '{"a":0}', '{"a":["0"]}', '{"a":[-1]}', '{"a":[true]}'])
def test_an_assignment_that_is_none_is_refused(text: str) -> None:
    refused("assign", {"assign": text}, text="JSON")


def test_starts_and_ends_by_offset() -> None:
    assert stream(startingOffsets="Earliest").start == Position(everywhere=EARLIEST)
    exact = '{"a":{"0":23,"1":-2}}'
    assert batch(startingOffsets=exact).start == Position(offsets={A0: 23, A1: EARLIEST})
    assert stream(startingOffsets='{"a":{"0":-1}}').start.offsets == {A0: LATEST}
    assert batch(endingOffsets='{"a":{"0":-1}}').end.offsets == {A0: LATEST}
    refused("startingOffsets", {**BASE, "startingOffsets": "latest"}, text="batch")
    refused("startingOffsets", {**BASE, "startingOffsets": '{"a":{"0":-1}}'}, text="batch")
    refused("endingOffsets", {**BASE, "endingOffsets": "earliest"}, text="earliest")
    refused("endingOffsets", {**BASE, "endingOffsets": '{"a":{"0":-2}}'}, text="earliest")
    refused("startingOffsets", {**BASE, "startingOffsets": "group"}, text=r"set kafka\.group\.id")
    refused("endingOffsets", {**BASE, "endingOffsets": "group"}, text="a start, not an end")
    assert stream(startingOffsets="Group", **{"kafka.group.id": "g"}).start == Position(group="g")


@pytest.mark.parametrize(
    "text", ["later", "{}", "[1]", '{"a":5}', '{"a":{"x":5}}', '{"a":{"0":-3}}', '{"a":{"0":1.5}}']
)
def test_offsets_that_are_none_are_refused(text: str) -> None:
    refused("startingOffsets", {**BASE, "startingOffsets": text}, text="JSON")


def test_a_timestamp_beats_timestamps_beat_offsets() -> None:
    by_offset = {"startingOffsets": "earliest"}
    by_times = {**by_offset, "startingOffsetsByTimestamp": '{"a":{"0":1000}}'}
    by_time = {**by_times, "startingTimestamp": "2000"}
    assert stream(**by_offset).start == Position(everywhere=EARLIEST)
    assert stream(**by_times).start == Position(timestamps={A0: 1000})
    assert stream(**by_time).start == Position(timestamp=2000)
    ends = {"endingTimestamp": "9", "endingOffsetsByTimestamp": '{"a":{"0":8}}', "endingOffsets": "latest"}
    assert batch(**ends).end == Position(timestamp=9, or_latest=True)
    del ends["endingTimestamp"]
    assert batch(**ends).end == Position(timestamps={A0: 8}, or_latest=True)


def test_a_start_after_the_last_record_is_an_error_or_the_end() -> None:
    late = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "Latest"}
    assert stream(**late).start.or_latest
    assert not stream(startingTimestamp="5").start.or_latest
    refused(
        "startingOffsetsByTimestampStrategy",
        {**BASE, "startingOffsetsByTimestampStrategy": "x"},
        text="error or latest",
    )


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_streams_have_no_end(name: str) -> None:
    refused(name, {**BASE, name: "1"}, streaming=True, text="streaming")


def test_limits_per_trigger() -> None:
    found = stream(maxOffsetsPerTrigger="9", minOffsetsPerTrigger="3", maxTriggerDelay="30s")
    assert (found.max_offsets_per_trigger, found.min_offsets_per_trigger) == (9, 3)
    assert found.max_trigger_delay_ms == 30_000
    assert batch(maxOffsetsPerTrigger="9") is not None
    refused("minOffsetsPerTrigger", {**BASE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, text="exceed")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500", 500), ("500ms", 500), ("2 m", 120_000), ("1min", 60_000), ("3h", 10_800_000), ("1d", 86_400_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_ms == ms


@pytest.mark.parametrize("text", ["", "soon", "-5s", "1.5h", "5 weeks"])
def test_durations_that_are_none_are_refused(text: str) -> None:
    if text:
        refused("maxTriggerDelay", {**BASE, "maxTriggerDelay": text}, text="duration")
    else:
        assert stream(maxTriggerDelay=text).max_trigger_delay_ms == 900_000


@pytest.mark.parametrize(
    ("name", "field", "least"),
    [
        ("minPartitions", "min_partitions", 1),
        ("maxRecordsPerPartition", "max_records_per_partition", 1),
        ("maxOffsetsPerTrigger", "max_offsets_per_trigger", 1),
        ("minOffsetsPerTrigger", "min_offsets_per_trigger", 1),
        ("kafkaConsumer.pollTimeoutMs", "poll_timeout_ms", 1),
        ("fetchOffset.numRetries", "fetch_retries", 0),
        ("fetchOffset.retryIntervalMs", "fetch_retry_interval_ms", 0),
    ],
)
def test_whole_numbers(name: str, field: str, least: int) -> None:
    assert getattr(stream(**{name: str(least)}), field) == least
    for text in ("x", "1.5", "", str(least - 1), "9" * 30):
        refused(name, {**BASE, name: text}, streaming=True, text="whole number")


@pytest.mark.parametrize("name", ["failOnDataLoss", "includeHeaders", "checkTopicIds", "commitOffsets"])
def test_flags(name: str) -> None:
    refused(name, {**BASE, name: "yes"}, text="true or false")
    assert batch(**{name: "False"}) == (batch(failOnDataLoss="false") if name == "failOnDataLoss" else batch())


def test_the_group_to_which_progress_is_committed() -> None:
    assert stream().commit_group is None
    assert stream(**{"kafka.group.id": "g"}).commit_group == "g"
    assert stream(**{"kafka.group.id": "g", "commitOffsets": "false"}).commit_group is None
    refused("kafka.group.id", {**BASE, "kafka.group.id": " "}, text="empty")


def test_a_group_without_a_name_has_the_same_one_after_every_restart() -> None:
    named = stream(commitOffsets="true").commit_group
    assert named is not None
    assert named.startswith("spark-kafka-source-")
    assert stream(commitOffsets="true", startingOffsets="earliest").commit_group == named
    assert stream(commitOffsets="true", subscribe="b").commit_group != named
    mine = stream(commitOffsets="true", groupIdPrefix="mine").commit_group
    assert mine == "mine-" + named.removeprefix("spark-kafka-source-")


def test_delays_by_topic() -> None:
    assert stream().delays_ms == {}
    assert stream(topicDelays='{"a.retry":"30s","b":500}').delays_ms == {"a.retry": 30_000, "b": 500}
    assert (stream().delays_at_ms, stream(topicDelaysAt="7").delays_at_ms) == (None, 7)
    for text in ("30s", "[]", '{"a":"soon"}', '{"a":null}', '{"a":-1}'):
        refused("topicDelays", {**BASE, "topicDelays": text}, text="must be")


@pytest.mark.parametrize(
    ("wrong", "right"), [("startingOffset", "startingOffsets"), ("maxOffsetPerTrigger", "maxOffsetsPerTrigger")]
)
def test_a_misspelt_option_is_refused_with_the_right_name(wrong: str, right: str) -> None:
    refused(wrong.lower(), {**BASE, wrong: "1"}, streaming=True, text=right)


def test_options_of_others_are_passed_over() -> None:
    assert batch(path="/x", queryName="q", myOwnOption="1") == batch()


@pytest.mark.parametrize("name", ["exactlyOnce", "transactionalIdPrefix"])
def test_options_of_the_sink_are_refused(name: str) -> None:
    refused(name, {**BASE, name: "true"}, text="not supported")


@pytest.mark.parametrize("key", kafka_keys.REFUSED_SOURCE)
def test_kafka_keys_that_the_source_refuses(key: str) -> None:
    refused(f"kafka.{key}", {**BASE, f"kafka.{key}": "x"}, text=kafka_keys.REFUSED_SOURCE[key][:20])


@pytest.mark.parametrize("key", kafka_keys.REFUSED_SINK)
def test_kafka_keys_that_the_sink_refuses(key: str) -> None:
    with pytest.raises(BadOption, match=kafka_keys.REFUSED_SINK[key][:20]) as caught:
        sink({f"kafka.{key}": "x"})
    assert caught.value.name == f"kafka.{key}"


def test_security_settings_are_those_of_the_clients() -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'
    given = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    security = batch(**{f"kafka.{key}": value for key, value in given.items()}).client.security
    assert (security.security_protocol, security.login) == ("SASL_SSL", ("a", "b"))
    assert batch().client.security.security_protocol == "PLAINTEXT"


def test_unsupported_security_settings_are_refused_with_a_reason() -> None:
    refused("kafka.ssl.truststore.type", {**BASE, "kafka.ssl.truststore.type": "JKS"}, text="PEM")
    refused("kafka.security.protocol", {**BASE, "kafka.security.protocol": "TELNET"}, text="SASL_SSL")


@pytest.mark.parametrize("key", kafka_keys.NO_EFFECT_SOURCE)
def test_kafka_keys_without_effect_on_the_source(key: str) -> None:
    assert batch(**{f"kafka.{key}": "5"}) == batch()


@pytest.mark.parametrize("key", kafka_keys.NO_EFFECT_SINK)
def test_kafka_keys_without_effect_on_the_sink(key: str) -> None:
    assert sink({f"kafka.{key}": "5"}) == sink()


def test_an_unknown_kafka_key_is_refused_with_the_nearest() -> None:
    refused("kafka.fetch.mx.bytes", {**BASE, "kafka.fetch.mx.bytes": "5"}, text="fetch.max.bytes")
    refused("kafka.fetch.max.bytes", {**BASE, "kafka.fetch.max.bytes": "many"}, text="whole number")


def test_kafka_keys_become_settings_of_the_client() -> None:
    found = batch(**{"kafka.client.id": "me", "kafka.fetch.max.bytes": "1000", "kafka.check.crcs": "false"}).client
    assert (found.client_id, found.fetch_max_bytes, found.check_crcs) == ("me", 1000, False)
    found = sink({"kafka.acks": "1", "kafka.compression.type": "zstd"}).client
    assert (found.acks, found.compression_type, found.enable_idempotence) == ("1", "zstd", False)
    assert sink().client.enable_idempotence


def test_the_sinks_own_settings() -> None:
    assert sink().topic is None
    assert sink({"topic": " t "}).topic == "t"
    with pytest.raises(BadOption, match="Option topic must not be empty"):
        sink({"topic": " "})
    assert sink({"kafka.partitioner.ignore.keys": "true"}).ignore_keys
    assert not sink().ignore_keys


def test_batches_fit_into_requests() -> None:
    assert sink().batch_bytes == 900_000
    assert sink({"kafka.batch.size": "16384"}).batch_bytes == 16_384
    assert sink({"kafka.max.request.size": "10000"}).batch_bytes == 10_000 - 1024
    assert sink({"kafka.batch.size": "0"}).batch_bytes == 1


def test_compression_levels_belong_to_their_codec() -> None:
    levels = {"kafka.compression.gzip.level": "9", "kafka.compression.zstd.level": "7"}
    assert sink({**levels, "kafka.compression.type": "zstd"}).level == 7
    assert sink({**levels, "kafka.compression.type": "gzip"}).level == 9
    assert sink({**levels, "kafka.compression.type": "lz4"}).level is None
    for text in ("10", "-2", "x"):
        with pytest.raises(BadOption, match="whole number"):
            sink({"kafka.compression.gzip.level": text})
