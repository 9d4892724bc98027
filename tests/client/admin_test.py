"""Admin calls: results per item, and malformed responses."""

from __future__ import annotations

import pytest

from ottla.client import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Admin,
    ClientError,
    Cluster,
    ConfigChange,
    ConfigOp,
    ConfigSource,
    MalformedReplyError,
    NewTopic,
    OffsetFound,
    RefusedError,
    Replica,
    Resource,
    ResourceType,
    TopicPartition,
    UnsupportedVersionError,
    first_error,
    values_of,
)
from ottla.client.admin.types import setting_text
from ottla.client.errors import UsageError
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterReplicaLogDirsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteRecordsResponse,
    DeleteTopicsResponse,
    DescribeClusterResponse,
    DescribeConfigsResponse,
    DescribeLogDirsResponse,
    IncrementalAlterConfigsResponse,
    ListOffsetsResponse,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC = Resource(ResourceType.TOPIC, "t")


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster)


def created(*items: tuple[str, int]) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreateTopicsResponse.CreatableTopicResult(
                name=name, error_code=code, error_message=None, num_partitions=3, replication_factor=1
            )
            for name, code in items
        ]
    )


def test_topics_are_created_or_refused_one_by_one(broker, admin) -> None:
    broker.on[ApiKey.CREATE_TOPICS] = lambda request: request.reply(created(("a", 0), ("b", 36)))
    results = admin.create_topics([NewTopic("b"), NewTopic("a", 3, configs={"retention.ms": "1"})])
    assert list(results) == ["b", "a"]
    assert results["a"].partitions == 3
    assert isinstance(results["b"], RefusedError)
    assert results["b"].code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert first_error(results) is results["b"]
    with pytest.raises(RefusedError, match="topic b: TOPIC_ALREADY_EXISTS"):
        values_of(results)
    sent = broker.asked(ApiKey.CREATE_TOPICS)[0].message()
    assert [(t.name, t.num_partitions, t.replication_factor) for t in sent.topics] == [("b", -1, -1), ("a", 3, -1)]
    assert [(c.name, c.value) for c in sent.topics[1].configs] == [("retention.ms", "1")]


def test_an_assignment_replaces_the_counts(broker, admin) -> None:
    broker.on[ApiKey.CREATE_TOPICS] = lambda request: request.reply(created(("a", 0)))
    admin.create_topics([NewTopic("a", 5, 5, assignment={0: [1, 2], 1: [2, 1]})], validate_only=True)
    sent = broker.asked(ApiKey.CREATE_TOPICS)[0].message()
    assert sent.validate_only
    assert (sent.topics[0].num_partitions, sent.topics[0].replication_factor) == (-1, -1)
    assert [(a.partition_index, a.broker_ids) for a in sent.topics[0].assignments] == [(0, [1, 2]), (1, [2, 1])]


def test_topics_refused_by_an_old_controller_are_retried(broker, admin) -> None:
    answers = iter([created(("a", 0), ("b", 41)), created(("b", 0))])
    broker.on[ApiKey.CREATE_TOPICS] = lambda request: request.reply(next(answers))
    assert first_error(admin.create_topics([NewTopic("a"), NewTopic("b")])) is None
    asked = [[t.name for t in request.message().topics] for request in broker.asked(ApiKey.CREATE_TOPICS)]
    assert asked == [["a", "b"], ["b"]]


def test_the_first_request_may_be_for_one_broker(broker, admin) -> None:
    resource = Resource(ResourceType.BROKER, "0")
    result = DescribeConfigsResponse.DescribeConfigsResult(resource_type=4, resource_name="0")
    broker.on[ApiKey.DESCRIBE_CONFIGS] = lambda request: request.reply(DescribeConfigsResponse(results=[result]))
    assert admin.describe_configs([resource]) == {resource: []}


@pytest.mark.parametrize("answer", [created(), created(("other", 0))])
def test_a_response_about_other_topics_is_malformed(broker, admin, answer) -> None:
    broker.on[ApiKey.CREATE_TOPICS] = lambda request: request.reply(answer)
    with pytest.raises(MalformedReplyError, match="does not list the requested topics"):
        admin.create_topics([NewTopic("a")])


@pytest.mark.parametrize("version", [3, 6])
def test_topics_are_deleted_by_name_in_old_and_new_versions(broker, admin, version: int) -> None:
    broker.versions[ApiKey.DELETE_TOPICS] = (0, version)
    item = DeleteTopicsResponse.DeletableTopicResult
    answer = DeleteTopicsResponse(responses=[item(name="a"), item(name="b", error_code=3)])
    broker.on[ApiKey.DELETE_TOPICS] = lambda request: request.reply(answer)
    results = admin.delete_topics(["a", "b"])
    assert results["a"] is None
    assert results["b"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    sent = broker.asked(ApiKey.DELETE_TOPICS)[0].message()
    assert (sent.topic_names or [topic.name for topic in sent.topics]) == ["a", "b"]


def test_partitions_are_added(broker, admin) -> None:
    item = CreatePartitionsResponse.CreatePartitionsTopicResult
    answer = CreatePartitionsResponse(results=[item(name="a"), item(name="b", error_code=37, error_message="fewer")])
    broker.on[ApiKey.CREATE_PARTITIONS] = lambda request: request.reply(answer)
    results = admin.create_partitions({"a": 4, "b": 1})
    assert results["a"] is None
    assert "topic b: INVALID_PARTITIONS: fewer. Use at least" in str(results["b"])


def offsets(*parts: tuple[int, int, int]) -> ListOffsetsResponse:
    item = ListOffsetsResponse.ListOffsetsPartitionResponse
    found = [item(partition_index=part, error_code=code, offset=offset) for part, code, offset in parts]
    return ListOffsetsResponse(topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=found)])


def test_offsets_come_from_the_leaders_and_are_retried_there(broker, admin) -> None:
    broker.topics = {"t": 2}
    answers = iter([offsets((0, 0, 7), (1, 6, -1)), offsets((1, 0, 9))])
    broker.on[ApiKey.LIST_OFFSETS] = lambda request: request.reply(next(answers))
    assert admin.list_offsets({T0: EARLIEST, T1: LATEST}) == {T0: OffsetFound(7, -1), T1: OffsetFound(9, -1)}
    first, second = [request.message() for request in broker.asked(ApiKey.LIST_OFFSETS)]
    assert first.replica_id == -1
    assert [(p.partition_index, p.timestamp) for p in first.topics[0].partitions] == [(0, -2), (1, -1)]
    assert [p.partition_index for p in second.topics[0].partitions] == [1]


def test_the_largest_timestamp_needs_a_broker_that_supports_it(broker, admin) -> None:
    broker.topics = {"t": 1}
    broker.versions[ApiKey.LIST_OFFSETS] = (0, 6)
    with pytest.raises(UnsupportedVersionError, match="needs version 7"):
        admin.list_offsets({T0: MAX_TIMESTAMP})


def test_records_are_deleted(broker, admin) -> None:
    broker.topics = {"t": 2}
    item = DeleteRecordsResponse.DeleteRecordsPartitionResult
    parts = [item(partition_index=0, low_watermark=5), item(partition_index=1, error_code=1)]
    answer = DeleteRecordsResponse(topics=[DeleteRecordsResponse.DeleteRecordsTopicResult(name="t", partitions=parts)])
    broker.on[ApiKey.DELETE_RECORDS] = lambda request: request.reply(answer)
    results = admin.delete_records({T0: 5, T1: 99})
    assert results[T0] == 5
    assert results[T1].code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_configurations_are_sorted_and_have_their_sources(broker, admin) -> None:
    entry, synonym = (
        DescribeConfigsResponse.DescribeConfigsResourceResult,
        DescribeConfigsResponse.DescribeConfigsSynonym,
    )
    configs = [
        entry(name="b", value=None, is_sensitive=True, config_source=99),
        entry(name="a", value="1", config_source=1, synonyms=[synonym(name="log.a", value="2", source=5)]),
    ]
    result = DescribeConfigsResponse.DescribeConfigsResult(resource_type=2, resource_name="t", configs=configs)
    broker.on[ApiKey.DESCRIBE_CONFIGS] = lambda request: request.reply(DescribeConfigsResponse(results=[result]))
    a, b = values_of(admin.describe_configs([TOPIC]))[TOPIC]
    assert (a.name, a.value, a.source, a.is_default) == ("a", "1", ConfigSource.DYNAMIC_TOPIC_CONFIG, False)
    assert a.synonyms == (("log.a", "2", ConfigSource.DEFAULT_CONFIG),)
    assert (b.value, b.sensitive, b.source) == (None, True, ConfigSource.UNKNOWN)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (ResourceType.TOPIC, ConfigSource.DYNAMIC_TOPIC_CONFIG),
        (ResourceType.BROKER, ConfigSource.STATIC_BROKER_CONFIG),
        (ResourceType.GROUP, ConfigSource.UNKNOWN),
    ],
)
def test_brokers_before_1_1_report_only_whether_a_value_is_the_default(broker, admin, kind, source) -> None:
    entry = DescribeConfigsResponse.DescribeConfigsResourceResult
    configs = [entry(name="a", value="1", is_default=True), entry(name="b", value="2")]
    result = DescribeConfigsResponse.DescribeConfigsResult(resource_type=int(kind), resource_name="0", configs=configs)
    broker.versions[ApiKey.DESCRIBE_CONFIGS] = (0, 0)
    broker.on[ApiKey.DESCRIBE_CONFIGS] = lambda request: request.reply(DescribeConfigsResponse(results=[result]))
    resource = Resource(kind, "0")
    a, b = values_of(admin.describe_configs([resource]))[resource]
    assert (a.source, b.source) == (ConfigSource.DEFAULT_CONFIG, source)


def test_a_brokers_configuration_is_requested_from_that_broker(broker, admin) -> None:
    admin._cluster.refresh()
    with pytest.raises(ClientError, match=r"broker 7 is not in the cluster"):
        admin.describe_configs([Resource(ResourceType.BROKER, "7")], deadline=admin._cluster.deadline().within_ms(20))


def test_configurations_are_changed_key_by_key(broker, admin) -> None:
    item = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    answer = IncrementalAlterConfigsResponse(
        responses=[item(resource_type=2, resource_name="t", error_code=40, error_message="no such key")]
    )
    broker.on[ApiKey.INCREMENTAL_ALTER_CONFIGS] = lambda request: request.reply(answer)
    changes = [ConfigChange("x", "1"), ConfigChange("y", None, ConfigOp.DELETE)]
    assert "topic t: INVALID_CONFIG: no such key" in str(admin.alter_configs({TOPIC: changes})[TOPIC])
    sent = broker.asked(ApiKey.INCREMENTAL_ALTER_CONFIGS)[0].message().resources[0].configs
    assert [(c.name, c.config_operation, c.value) for c in sent] == [("x", 0, "1"), ("y", 1, None)]


def test_a_response_about_another_resource_is_malformed(broker, admin) -> None:
    result = DescribeConfigsResponse.DescribeConfigsResult(resource_type=2, resource_name="u")
    for results in ([result], []):
        answer = DescribeConfigsResponse(results=results)
        broker.on[ApiKey.DESCRIBE_CONFIGS] = lambda request, answer=answer: request.reply(answer)
        with pytest.raises(MalformedReplyError, match="the response has"):
            admin.describe_configs([TOPIC])


def test_log_directories_of_every_broker_are_described(broker, admin) -> None:
    part = DescribeLogDirsResponse.DescribeLogDirsPartition(partition_index=1, partition_size=10)
    topic = DescribeLogDirsResponse.DescribeLogDirsTopic(name="t", partitions=[part])
    item = DescribeLogDirsResponse.DescribeLogDirsResult
    answer = DescribeLogDirsResponse(
        results=[
            item(log_dir="/a", topics=[topic], total_bytes=100, usable_bytes=50),
            item(log_dir="/b", error_code=56),
        ]
    )
    broker.on[ApiKey.DESCRIBE_LOG_DIRS] = lambda request: request.reply(answer)
    good, bad = admin.describe_log_dirs()[0]
    assert (good.path, good.total_bytes, good.usable_bytes) == ("/a", 100, 50)
    assert [(replica.tp, replica.size) for replica in good.replicas] == [(T1, 10)]
    assert bad.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_replicas_move_to_other_directories(broker, admin) -> None:
    item = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
    rows = [item(partition_index=0), item(partition_index=1, error_code=57)]
    topic = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic_name="t", partitions=rows)
    broker.on[ApiKey.ALTER_REPLICA_LOG_DIRS] = lambda request: request.reply(
        AlterReplicaLogDirsResponse(results=[topic])
    )
    first, second = Replica(TopicPartition("t", 0), 0), Replica(T1, 0)
    results = admin.alter_replica_log_dirs({second: "/b", first: "/a"})
    assert list(results) == [second, first]
    assert (results[first], results[second].code) == (None, ErrorCode.LOG_DIR_NOT_FOUND)
    (asked,) = [request.message() for request in broker.asked(ApiKey.ALTER_REPLICA_LOG_DIRS)]
    assert [(each.path, each.topics[0].partitions) for each in asked.dirs] == [("/b", [1]), ("/a", [0])]
    broker.on[ApiKey.ALTER_REPLICA_LOG_DIRS] = lambda request: request.reply(AlterReplicaLogDirsResponse())
    assert isinstance(admin.alter_replica_log_dirs({first: "/a"})[first], MalformedReplyError)


def test_the_cluster_and_its_brokers_are_described(broker, admin) -> None:
    node = DescribeClusterResponse.DescribeClusterBroker
    answer = DescribeClusterResponse(
        cluster_id="c",
        controller_id=2,
        brokers=[node(broker_id=2, host="b", port=2), node(broker_id=1, host="a", port=1)],
    )
    broker.on[ApiKey.DESCRIBE_CLUSTER] = lambda request: request.reply(answer)
    found = admin.describe_cluster()
    assert (found.cluster_id, found.controller_id, [n.node_id for n in found.nodes]) == ("c", 2, [1, 2])
    refused = DescribeClusterResponse(error_code=31, error_message="who are you")
    broker.on[ApiKey.DESCRIBE_CLUSTER] = lambda request: request.reply(refused)
    with pytest.raises(RefusedError, match="CLUSTER_AUTHORIZATION_FAILED: who are you"):
        admin.describe_cluster()


def test_topics_are_listed_and_described(broker, admin) -> None:
    broker.topics = {"b": 1, "a": 2}
    assert [view.name for view in admin.list_topics()] == ["a", "b"]
    results = admin.describe_topics(["a", "nope"])
    assert len(results["a"].partitions) == 2
    assert results["nope"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_error_code_is_shown_as_its_number(broker, admin) -> None:
    broker.on[ApiKey.CREATE_TOPICS] = lambda request: request.reply(created(("a", 999)))
    error = admin.create_topics([NewTopic("a")])["a"]
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "error code 999" in str(error)


@pytest.mark.parametrize("call", ["delete_topics", "describe_topics"])
def test_a_string_instead_of_a_list_of_names_is_refused_before_any_request(broker, admin, call) -> None:
    """A string would be taken for the list of its letters, and other topics would be deleted."""
    with pytest.raises(UsageError, match=rf"{call} takes a list of names, not the string 'abc'. Use \['abc'\]"):
        getattr(admin, call)("abc")
    with pytest.raises(UsageError, match="1 is int, but a name is a string"):
        getattr(admin, call)([1])


def test_setting_values_may_be_numbers_booleans_and_lists() -> None:
    class Number:
        def __index__(self) -> int:
            return 7

    taken = {1000: "1000", True: "true", 0.5: "0.5", Number(): "7", ("compact", "delete"): "compact,delete", "x": "x"}
    assert {value: setting_text("k", value) for value in taken} == taken
    assert setting_text("k", None) is None
    with pytest.raises(UsageError, match=r"retention.ms: \{\} is dict, which is not a value"):
        setting_text("retention.ms", {})
