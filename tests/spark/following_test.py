"""A streaming reader over time: it commits to a group, waits for delays, and notices changed topics."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.spark.attempts import Bench
from tests.spark.planning import Query, batch, stream

from ottla.client.admin.groups import GroupAdmin, GroupOffset
from ottla.client.errors import DeadlineError, RefusedError
from ottla.client.positions import OffsetAndMetadata
from ottla.client.retry import Deadline
from ottla.spark.errors import BadCheckpoint, DataLoss
from ottla.spark.offsets import PLAN
from ottla.spark.source import readers
from ottla.types import TopicPartition

# -- groups --------------------------------------------------------------------------------------------------------


def committed(topics: Any, group: str) -> dict[str, int]:
    found = GroupAdmin(topics.cluster).group_offsets(group)
    return {str(tp): at.offset for tp, at in found.items() if isinstance(at, GroupOffset)}


def test_only_finished_batches_are_committed_to_the_group(topics: Any) -> None:
    topic = topics.make(2)
    topics.put(topic, 0, [b"x"] * 3)
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": f"{topic}-readers"}
    with stream(topics, **options) as reader:
        query = Query(reader)
        assert query.trigger() == [(f"{topic}-0", 0, 3)]
        assert committed(topics, f"{topic}-readers") == {}, "the first batch is planned, not finished"
        assert query.trigger() is None
        assert committed(topics, f"{topic}-readers") == {f"{topic}-0": 3, f"{topic}-1": 0}
        topics.put(topic, 1, [b"x"])
        query.trigger()
        assert committed(topics, f"{topic}-readers") == {f"{topic}-0": 3, f"{topic}-1": 0}
        query.trigger()
        assert committed(topics, f"{topic}-readers") == {f"{topic}-0": 3, f"{topic}-1": 1}


def test_offsets_of_an_expired_group_are_committed_again(topics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers delete the offsets of a group that is idle for long; a query may be idle, and lag tools need them."""
    topic = topics.make()
    topics.put(topic, 0, [b"x"])
    group = f"{topic}-idle"
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": group}
    with stream(topics, **options) as reader:
        query = Query(reader)
        query.trigger()
        query.trigger()
        GroupAdmin(topics.cluster).delete_groups([group])
        query.trigger()
        assert committed(topics, group) == {}, "an hour has not passed"
        told = reader._open_lookup().group
        assert told is not None
        monkeypatch.setattr(told, "_repeat", Deadline(0))
        query.trigger()
        assert committed(topics, group) == {f"{topic}-0": 1}


def test_nothing_is_committed_without_a_group_or_with_commit_offsets_false(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"])
    start = {"subscribe": topic, "startingOffsets": "earliest"}
    for options in ({}, {"kafka.group.id": f"{topic}-off", "commitOffsets": "false"}):
        with stream(topics, **start, **options) as reader:
            query = Query(reader)
            query.trigger()
            query.trigger()
    assert committed(topics, f"{topic}-off") == {}
    assert not [one for one in GroupAdmin(topics.cluster).list_groups()[0] if topic in one.group_id]


def test_a_group_with_members_does_not_stop_the_query(topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Kafka accepts commits only from members, when there are any; the query continues."""
    from ottla.client.consumer import Consumer

    topic = topics.make()
    topics.put(topic, 0, [b"x"])
    group = f"{topic}-live"
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": group}
    settings = {"bootstrap.servers": topics.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer, stream(topics, **options) as reader:
        consumer.subscribe([topic])
        assert list(consumer.poll(180))
        query = Query(reader)
        query.trigger()
        assert query.trigger() is None
    assert "not committed to group" in caplog.text
    assert "UNKNOWN_MEMBER_ID" in caplog.text


def test_a_query_begins_where_its_group_is_and_elsewhere_at_the_beginning(topics: Any) -> None:
    topic = topics.make(2)
    for number in range(2):
        topics.put(topic, number, [b"x"] * 5)
    GroupAdmin(topics.cluster).alter_group_offsets(f"{topic}-moved", {TopicPartition(topic, 1): 3})
    options = {"subscribe": topic, "startingOffsets": "group", "kafka.group.id": f"{topic}-moved"}
    with stream(topics, **options) as reader:
        assert Query(reader).trigger() == [(f"{topic}-0", 0, 5), (f"{topic}-1", 3, 5)]
    assert batch(topics, **options) == [(f"{topic}-0", 0, 5), (f"{topic}-1", 3, 5)]


def test_offsets_committed_by_a_sink_are_never_moved_back(topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint restored to an older state: its next batch is refused by the marker (StaleDriver), and a
    new query that begins where the group is must not begin before what was written."""
    topic = topics.make(2)
    topics.put(topic, 0, [b"x"] * 3)
    topics.put(topic, 1, [b"x"] * 3)
    group, first, second = f"{topic}-back", TopicPartition(topic, 0), TopicPartition(topic, 1)
    mark = '{"q":"3f1c","b":4}'
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": group}
    admin = GroupAdmin(topics.cluster)
    admin.alter_group_offsets(group, {first: OffsetAndMetadata(9, -1, mark), second: OffsetAndMetadata(2, -1, mark)})
    with stream(topics, **options) as reader:
        query = Query(reader)
        query.trigger()
        query.trigger()
    assert admin.group_offsets(group) == {first: GroupOffset(9, -1, mark), second: GroupOffset(3, -1, mark)}
    assert "the checkpoint was restored or is new" in caplog.text


def test_a_query_waits_for_open_transactions_of_the_group_where_it_begins(topics: Any) -> None:
    """Otherwise it would read records again whose rows are committed when that transaction ends."""
    topic, out = topics.make(), topics.make()
    topics.put(topic, 0, [b"x"] * 5)
    group, tp = f"{topic}-open", TopicPartition(topic, 0)
    bench = Bench(topics.bootstrap, out, f"query-{topic}")
    attempt = bench.attempt()
    prepared = bench.prepared(attempt, ["row"], {group: {tp: 4}})
    options = {"subscribe": topic, "startingOffsets": "group", "kafka.group.id": group}
    once = {"kafka.default.api.timeout.ms": "500", "kafka.request.timeout.ms": "400", "fetchOffset.numRetries": "0"}
    with pytest.raises(DeadlineError, match="UNSTABLE_OFFSET_COMMIT"):
        batch(topics, **options, **once)
    attempt.commit_prepared(prepared)  # type: ignore[arg-type]
    assert batch(topics, **options) == [(f"{topic}-0", 4, 5)]
    bench.close()


# -- delays --------------------------------------------------------------------------------------------------------


def test_a_topic_with_a_delay_is_read_when_its_records_are_old_enough(
    topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100_000]
    monkeypatch.setattr(readers, "wall_ms", lambda: clock[0])
    plain, late = topics.make(), topics.make()
    topics.put(plain, 0, [b"x"], at_ms=100_000)
    topics.put(late, 0, [b"x"] * 3, at_ms=71_000)  # 71,000, 71,001 and 71,002
    options = {"subscribe": f"{plain},{late}", "startingOffsets": "earliest", "topicDelays": json.dumps({late: "30s"})}
    with stream(topics, **options) as reader:
        query = Query(reader)
        assert query.trigger() == [(f"{plain}-0", 0, 1)]
        assert query.last[late] == {"0": 0}
        clock[0] = 101_001
        assert query.trigger() == [(f"{late}-0", 0, 1)]
        clock[0] = 100_000  # a clock that is set back does not move the end back
        assert query.trigger() is None
        clock[0] = 101_003
        assert query.trigger() == [(f"{late}-0", 1, 3)]
        assert query.trigger() is None
    clock[0] = 101_002
    assert batch(topics, subscribe=late, topicDelays=json.dumps({late: 30_000})) == [(f"{late}-0", 0, 2)]
    given = {"topicDelays": json.dumps({late: 30_000}), "topicDelaysAt": "101001"}
    assert batch(topics, subscribe=late, **given) == [(f"{late}-0", 0, 1)], "the time that is given, not the clock's"


def test_available_now_takes_what_is_due_when_it_begins(topics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_029]
    monkeypatch.setattr(readers, "wall_ms", lambda: clock[0])
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 3, at_ms=1_000)
    with stream(topics, subscribe=topic, startingOffsets="earliest", topicDelays=f'{{"{topic}":"28ms"}}') as reader:
        reader.prepareForTriggerAvailableNow()
        clock[0] = 9_999
        query = Query(reader)
        assert query.trigger() == [(f"{topic}-0", 0, 1)]
        assert reader.reportLatestOffset() == {topic: {"0": 3}}, "what waits is seen"
        assert query.trigger() is None


# -- topics that are not what they were ----------------------------------------------------------------------------


def make_anew(topics: Any, topic: str) -> None:
    topics.admin().delete_topics([topic])
    topics.make_again(topic, 1)


def test_a_topic_made_again_under_a_running_query_is_noticed_whatever_its_length(topics: Any) -> None:
    for lossy in ("true", "false"):
        topic = topics.make()
        topics.put(topic, 0, [b"x"] * 2)
        options = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": lossy}
        with stream(topics, **options) as reader:
            query = Query(reader)
            query.trigger()
            make_anew(topics, topic)
            topics.put(topic, 0, [b"new"] * 4)
            if lossy == "true":
                with pytest.raises(DataLoss, match=f"topic {topic} is not the one that the query has read"):
                    query.trigger()
            else:
                assert query.trigger() == [(f"{topic}-0", 0, 4)]
                assert query.trigger() is None


def test_a_restart_notices_a_recreated_topic_with_ids_in_the_checkpoint(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 2)
    options = {"subscribe": topic, "startingOffsets": "earliest", "checkTopicIds": "true"}
    with stream(topics, **options) as reader:
        query = Query(reader)
        query.trigger()
        topics.put(topic, 0, [b"x"])
        query.trigger()
    assert list(query.last[PLAN]["ids"]) == [topic]
    with stream(topics, **options) as reader:
        assert Query(reader, query.last).trigger() is None
    make_anew(topics, topic)
    topics.put(topic, 0, [b"new"] * 4)
    with stream(topics, **options) as reader, pytest.raises(DataLoss, match="its topic id has changed"):
        Query(reader, query.last).trigger()


def test_a_topic_deleted_under_a_running_query_is_a_loss(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 2)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    with stream(topics, **options) as reader, stream(topics, **options, failOnDataLoss="false") as lenient:
        query = Query(reader)
        query.trigger()
        topics.admin().delete_topics([topic])
        with pytest.raises(DataLoss, match=f"{topic}-0 no longer exists"):
            query.trigger()
        assert Query(lenient, query.last).trigger() is None


def test_a_checkpoint_of_another_topic_is_refused(topics: Any) -> None:
    one, two = topics.make(), topics.make()
    with stream(topics, subscribe=two) as reader, pytest.raises(BadCheckpoint, match=f"read {one}, .* reads {two}"):
        Query(reader, {one: {"0": 0}}).trigger()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_that_is_not_there_when_the_query_begins_is_named(topics: Any, available_now: bool) -> None:
    with stream(topics, subscribe="no-such-topic") as reader:
        if available_now:
            reader.prepareForTriggerAvailableNow()
        with pytest.raises(RefusedError, match="no-such-topic: UNKNOWN_TOPIC_OR_PARTITION"):
            Query(reader).trigger()
