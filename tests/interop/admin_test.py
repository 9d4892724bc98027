"""Administration through every client that has it: topics, partitions, configuration, deletion of records."""

from __future__ import annotations

import asyncio

import pytest
from testbench.clients import WAIT_S, Confluent, Record

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FIFTY = [Record(b"%d" % number, b"v") for number in range(50)]


def done(futures):
    """The results of confluent-kafka's futures, by key."""
    return {key: future.result(WAIT_S) for key, future in futures.items()}


# -- confluent-kafka ---------------------------------------------------------------------------------------------------


@pytest.fixture
def confluent(bootstrap: str):
    """confluent-kafka's admin client."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})


def test_confluent_creates_lists_and_deletes_topics(confluent, topic: str) -> None:
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import NewTopic

    done(confluent.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "1234567"})]))
    listed = confluent.list_topics(topic, WAIT_S).topics[topic]
    assert sorted(listed.partitions) == [0, 1, 2]
    assert all((each.leader, each.replicas, each.isrs) == (1, [1], [1]) for each in listed.partitions.values())
    described = confluent.describe_topics(TopicCollection([topic]))[topic].result(WAIT_S)
    assert (described.name, len(described.partitions), described.is_internal) == (topic, 3, False)
    first_id = str(described.topic_id)
    done(confluent.delete_topics([topic]))
    assert topic not in confluent.list_topics(timeout=WAIT_S).topics
    done(confluent.create_topics([NewTopic(topic, 1, 1)]))
    again = confluent.describe_topics(TopicCollection([topic]))[topic].result(WAIT_S)
    assert (len(again.partitions), str(again.topic_id) != first_id) == (1, True)


def test_confluent_is_told_what_is_wrong(confluent, topic: str) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewPartitions, NewTopic

    def code(futures) -> int:
        (future,) = futures.values()
        with pytest.raises(KafkaException) as refused:
            future.result(WAIT_S)
        return refused.value.args[0].code()

    done(confluent.create_topics([NewTopic(topic, 2, 1)]))
    assert code(confluent.create_topics([NewTopic(topic, 2, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    assert code(confluent.create_topics([NewTopic("a/b", 1, 1)])) == KafkaError.TOPIC_EXCEPTION
    assert code(confluent.create_topics([NewTopic("x" * 250, 1, 1)])) == KafkaError.TOPIC_EXCEPTION
    assert code(confluent.create_topics([NewTopic("r3", 1, 3)])) == KafkaError.INVALID_REPLICATION_FACTOR
    assert code(confluent.create_topics([NewTopic("c", 1, 1, config={"nonsense": "1"})])) == KafkaError.INVALID_CONFIG
    assert (
        code(confluent.create_topics([NewTopic("c", 1, 1, config={"retention.ms": "x"})])) == KafkaError.INVALID_CONFIG
    )
    assert code(confluent.create_partitions([NewPartitions(topic, 1)])) == KafkaError.INVALID_PARTITIONS
    assert code(confluent.delete_topics(["not-there"])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_confluent_validates_without_creating(confluent, topic: str) -> None:
    from confluent_kafka.admin import NewTopic

    done(confluent.create_topics([NewTopic(topic, 1, 1)], validate_only=True))
    assert topic not in confluent.list_topics(timeout=WAIT_S).topics


def test_confluent_adds_partitions(confluent, bootstrap: str, topic: str) -> None:
    from confluent_kafka.admin import NewPartitions, NewTopic

    done(confluent.create_topics([NewTopic(topic, 1, 1)]))
    done(confluent.create_partitions([NewPartitions(topic, 4)]))
    assert len(confluent.list_topics(topic, WAIT_S).topics[topic].partitions) == 4


def test_confluent_changes_settings(confluent, topic: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

    def settings() -> dict[str, tuple[str, bool]]:
        (future,) = confluent.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        return {name: (entry.value, entry.is_default) for name, entry in future.result(WAIT_S).items()}

    def alter(name: str, value: str | None, how: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=how)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        done(confluent.incremental_alter_configs([resource]))

    done(confluent.create_topics([NewTopic(topic, 1, 1)]))
    assert settings()["retention.ms"] == ("604800000", True)
    assert settings()["cleanup.policy"] == ("delete", True)
    alter("retention.ms", "77000", AlterConfigOpType.SET)
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert settings()["retention.ms"] == ("77000", False)
    assert settings()["cleanup.policy"] == ("delete,compact", False)
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    assert settings()["retention.ms"] == ("604800000", True)


def test_confluent_describes_broker_settings_and_cluster(confluent) -> None:
    from confluent_kafka.admin import ConfigResource

    (future,) = confluent.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
    found = future.result(WAIT_S)
    assert found["log.segment.bytes"].value == "1073741824"
    assert found["node.id"].value == "1"
    cluster = confluent.describe_cluster().result(WAIT_S)
    assert (len(cluster.nodes), cluster.controller.id) == (1, 1)
    assert len(cluster.cluster_id) == 22


def test_confluent_finds_offsets_and_deletes_records(confluent, bootstrap: str, topic: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    def offset(spec) -> int:
        (future,) = confluent.list_offsets({TopicPartition(topic, 0): spec}).values()
        return future.result(WAIT_S).offset

    stamped = [each._replace(timestamp=1_700_000_000_000 + number) for number, each in enumerate(FIFTY)]
    Confluent().write(bootstrap, topic, stamped)
    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())) == (0, 50)
    assert offset(OffsetSpec.max_timestamp()) == 49
    assert offset(OffsetSpec.for_timestamp(1_700_000_000_030)) == 30
    (deleted,) = confluent.delete_records([TopicPartition(topic, 0, 20)]).values()
    assert deleted.result(WAIT_S).low_watermark == 20
    assert offset(OffsetSpec.earliest()) == 20
    assert [each.key for each in Confluent().read(bootstrap, topic, 0, 20)] == [each.key for each in FIFTY[20:]]
    (deleted,) = confluent.delete_records([TopicPartition(topic, 0, -1)]).values()
    assert deleted.result(WAIT_S).low_watermark == 50


# -- kafka-python ------------------------------------------------------------------------------------------------------


@pytest.fixture
def kafka_python(bootstrap: str):
    """kafka-python's admin client."""
    from kafka import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_kafka_python_administers_topics(kafka_python, bootstrap: str, topic: str) -> None:
    from kafka.admin import NewPartitions, NewTopic

    kafka_python.create_topics([NewTopic(topic, 2, 1, topic_configs={"segment.bytes": "1048576"})])
    assert topic in kafka_python.list_topics()
    (described,) = kafka_python.describe_topics([topic])
    assert len(described["partitions"]) == 2
    kafka_python.create_partitions({topic: NewPartitions(5)})
    (described,) = kafka_python.describe_topics([topic])
    assert len(described["partitions"]) == 5
    kafka_python.delete_topics([topic])
    assert topic not in kafka_python.list_topics()


def test_kafka_python_is_told_what_is_wrong(kafka_python, topic: str) -> None:
    from kafka.admin import NewTopic
    from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

    kafka_python.create_topics([NewTopic(topic, 1, 1)])
    with pytest.raises(TopicAlreadyExistsError):
        kafka_python.create_topics([NewTopic(topic, 1, 1)])
    with pytest.raises(UnknownTopicOrPartitionError):
        kafka_python.delete_topics(["not-there-either"])


def test_kafka_python_settings_and_records(kafka_python, bootstrap: str, topic: str) -> None:
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType

    Confluent().write(bootstrap, topic, FIFTY)
    kafka_python.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": "9999"})])
    found = kafka_python.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    assert "9999" in str(found)
    where = TopicPartition(topic, 0)
    kafka_python.delete_records({where: 10})
    assert [each.key for each in Confluent().read(bootstrap, topic, 0, 10)] == [each.key for each in FIFTY[10:]]


def test_kafka_python_describes_the_cluster_and_log_directories(kafka_python, broker, topic: str) -> None:
    cluster = kafka_python.describe_cluster()
    assert len(cluster["brokers"]) == 1
    assert cluster["controller_id"] == 1
    assert str(broker.data) in str(kafka_python.describe_log_dirs())


# -- aiokafka ----------------------------------------------------------------------------------------------------------


def test_aiokafka_administers_topics(bootstrap: str, topic: str) -> None:
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    async def story() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "5000000"})])
        assert topic in await admin.list_topics()
        (described,) = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 2
        found = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        assert "5000000" in str(found)
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "6000000"})
        await admin.alter_configs([resource])
        assert "6000000" in str(await admin.describe_configs([resource]))
        await admin.create_partitions({topic: NewPartitions(3)})
        await asyncio.to_thread(Confluent().write, bootstrap, topic, FIFTY)
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(30)})
        left = await asyncio.to_thread(Confluent().read, bootstrap, topic, 0, 30)
        assert [each.key for each in left] == [each.key for each in FIFTY[30:]]
        cluster = await admin.describe_cluster()
        assert len(cluster["brokers"]) == 1
        await admin.delete_topics([topic])
        assert topic not in await admin.list_topics()
        await admin.close()

    asyncio.run(asyncio.wait_for(story(), WAIT_S))
