"""What the batch reader and the streaming reader plan, called as Spark calls them, without Spark around them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from tests.spark.planning import Query, batch, logged, ranges, stream

from ottla.client.batch_transaction import BatchTransaction, ConnectionCache
from ottla.client.errors import RefusedError
from ottla.client.positions import OffsetAndMetadata
from ottla.client.settings import ClientConfig
from ottla.spark.errors import BadCheckpoint, BadOption, DataLoss
from ottla.spark.offset_metadata import held_until
from ottla.spark.offsets import PLAN
from ottla.spark.options import source_options
from ottla.spark.source import readers
from ottla.spark.source.readers import BatchReader, Part, StreamReader
from ottla.types import TopicPartition

# -- batch ---------------------------------------------------------------------------------------------------------


def test_a_batch_read_takes_all_there_is(topics: Any) -> None:
    topic = topics.make(3)
    topics.put(topic, 0, [b"x"] * 5)
    topics.put(topic, 2, [b"x"] * 2)
    assert batch(topics, subscribe=topic) == [(f"{topic}-0", 0, 5), (f"{topic}-2", 0, 2)]


def test_several_topics_a_pattern_or_chosen_partitions(topics: Any) -> None:
    one, two = topics.make(), topics.make(2)
    topics.put(one, 0, [b"x"])
    topics.put(two, 0, [b"x"])
    topics.put(two, 1, [b"x"])
    assert batch(topics, subscribe=f"{two},{one}") == [(f"{one}-0", 0, 1), (f"{two}-0", 0, 1), (f"{two}-1", 0, 1)]
    assert batch(topics, subscribePattern=f"{one}|{two[:-1]}[{two[-1]}]") == batch(topics, subscribe=f"{one},{two}")
    assert batch(topics, subscribePattern=one[1:]) == []  # a pattern matches whole names
    assert batch(topics, assign=json.dumps({two: [1]})) == [(f"{two}-1", 0, 1)]


def test_a_topic_or_partition_that_does_not_exist_is_named(topics: Any) -> None:
    with pytest.raises(RefusedError, match="no-such-topic: UNKNOWN_TOPIC_OR_PARTITION"):
        batch(topics, subscribe="no-such-topic")
    topic = topics.make()
    with pytest.raises(BadOption, match=f"names {topic}-7, which does not exist"):
        batch(topics, assign=json.dumps({topic: [0, 7]}))


def test_a_batch_read_between_offsets(topics: Any) -> None:
    topic = topics.make(2)
    topics.put(topic, 0, [b"x"] * 9)
    topics.put(topic, 1, [b"x"] * 9)
    start, end = json.dumps({topic: {"0": 2, "1": -2}}), json.dumps({topic: {"0": 5, "1": -1}})
    found = batch(topics, subscribe=topic, startingOffsets=start, endingOffsets=end)
    assert found == [(f"{topic}-0", 2, 5), (f"{topic}-1", 0, 9)]


def test_offsets_must_name_the_partitions_that_are_read(topics: Any) -> None:
    topic = topics.make(2)
    for offsets, text in (({"0": 0}, f"{topic}-1 is missing"), ({"0": 0, "1": 0, "2": 0}, f"{topic}-2, which is not")):
        with pytest.raises(BadOption, match=text):
            batch(topics, subscribe=topic, startingOffsets=json.dumps({topic: offsets}))


def test_an_end_beyond_the_log_is_refused_or_cut(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 3)
    end = json.dumps({topic: {"0": 9}})
    with pytest.raises(BadOption, match=f"offset 9 of {topic}-0, which ends at 3"):
        batch(topics, subscribe=topic, endingOffsets=end)
    assert batch(topics, subscribe=topic, endingOffsets=end, failOnDataLoss="false") == [(f"{topic}-0", 0, 3)]


def test_a_batch_read_between_timestamps(topics: Any) -> None:
    topic = topics.make(2)
    topics.put(topic, 0, [b"x"] * 10, at_ms=1000)
    topics.put(topic, 1, [b"x"] * 10, at_ms=1005)
    found = batch(topics, subscribe=topic, startingTimestamp="1003", endingTimestamp="1008")
    assert found == [(f"{topic}-0", 3, 8), (f"{topic}-1", 0, 3)]
    start = json.dumps({topic: {"0": 1009, "1": 1010}})
    found = batch(topics, subscribe=topic, startingOffsetsByTimestamp=start)
    assert found == [(f"{topic}-0", 9, 10), (f"{topic}-1", 5, 10)]
    end = json.dumps({topic: {"0": 1001, "1": 9999}})
    found = batch(topics, subscribe=topic, endingOffsetsByTimestamp=end)
    assert found == [(f"{topic}-0", 0, 1), (f"{topic}-1", 0, 10)]


def test_a_start_after_the_last_record_is_an_error_by_default(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"])
    with pytest.raises(BadOption, match=f"{topic}-0 has no record at or after 2000"):
        batch(topics, subscribe=topic, startingTimestamp="2000")
    late = {"startingTimestamp": "2000", "startingOffsetsByTimestampStrategy": "latest"}
    assert batch(topics, subscribe=topic, **late) == []


def test_ranges_are_split_for_more_tasks(topics: Any) -> None:
    topic = topics.make(2)
    topics.put(topic, 0, [b"x"] * 30)
    topics.put(topic, 1, [b"x"] * 10)
    assert len(batch(topics, subscribe=topic, minPartitions="4")) == 4
    parts = batch(topics, subscribe=topic, maxRecordsPerPartition="8")
    assert [end - start for _, start, end in parts] == [7, 8, 7, 8, 5, 5]


# -- streaming -----------------------------------------------------------------------------------------------------


def test_the_first_batch_freezes_where_the_query_began(topics: Any) -> None:
    """With startingOffsets=latest nothing that comes after the start is lost, although no batch has run yet."""
    topic = topics.make()
    topics.put(topic, 0, [b"old"] * 4)
    with stream(topics, subscribe=topic) as reader:
        assert reader.initialOffset() == reader.initialOffset()
        query = Query(reader)
        assert query.trigger() == []
        assert query.last == {topic: {"0": 4}, PLAN: {"start": {topic: {"0": 4}}}}
        assert query.trigger() is None
        topics.put(topic, 0, [b"new"] * 2)
        assert query.trigger() == [(f"{topic}-0", 4, 6)]
        assert query.last == {topic: {"0": 6}}


def test_a_first_batch_that_is_run_again_reads_the_same_although_time_went_on(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 4)
    with stream(topics, subscribe=topic, startingOffsets="earliest", minPartitions="2") as reader:
        query = Query(reader)
        first = query.trigger()
    topics.put(topic, 0, [b"x"] * 4)
    with stream(topics, subscribe=topic, startingOffsets="latest", minPartitions="4") as later:
        assert ranges(later.partitions(logged(later.initialOffset()), query.last)) == first
    assert first == [(f"{topic}-0", 0, 2), (f"{topic}-0", 2, 4)]


def test_a_restart_continues_where_the_log_ended(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 4)
    with stream(topics, subscribe=topic, startingOffsets="earliest") as reader:
        query = Query(reader)
        query.trigger()
    topics.put(topic, 0, [b"x"] * 3)
    with stream(topics, subscribe=topic, startingOffsets="earliest") as reader:
        again = Query(reader, query.last)
        assert again.trigger() == [(f"{topic}-0", 4, 7)]
        assert again.trigger() is None


def test_a_checkpoint_of_sparks_own_source_is_continued(topics: Any) -> None:
    topic = topics.make(2)
    topics.put(topic, 1, [b"x"] * 4)
    with stream(topics, subscribe=topic) as reader:
        query = Query(reader, json.loads(f'{{"{topic}":{{"1":1,"0":0}}}}'))
        assert query.trigger() == [(f"{topic}-1", 1, 4)]
        assert query.last == {topic: {"0": 0, "1": 4}}


def test_a_first_batch_of_sparks_own_source_needs_explicit_offsets(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 4)
    end = {topic: {"0": 3}}
    with stream(topics, subscribe=topic, startingOffsets="earliest") as reader, pytest.raises(BadCheckpoint):
        reader.partitions(logged(reader.initialOffset()), end)
    explicit = json.dumps({topic: {"0": 1}})
    with stream(topics, subscribe=topic, startingOffsets=explicit) as reader:
        assert ranges(reader.partitions(logged(reader.initialOffset()), end)) == [(f"{topic}-0", 1, 3)]


def test_new_partitions_and_topics_are_read_from_their_beginning(topics: Any) -> None:
    topic = topics.make(1)
    topics.put(topic, 0, [b"x"] * 2)
    with stream(topics, subscribePattern=f"{topic}.*", startingOffsets="latest") as reader:
        query = Query(reader)
        query.trigger()
        topics.admin().create_partitions({topic: 2})
        topics.make_again(f"{topic}-more", 1)
        topics.put(topic, 1, [b"x"] * 3)
        topics.put(f"{topic}-more", 0, [b"x"])
        assert query.trigger() == [(f"{topic}-1", 0, 3), (f"{topic}-more-0", 0, 1)]
        assert query.last[PLAN] == {"new": {topic: {"1": 0}, f"{topic}-more": {"0": 0}}}
        assert query.trigger() is None


def test_at_most_so_many_offsets_per_trigger(topics: Any) -> None:
    topic = topics.make(3)
    for number in range(3):
        topics.put(topic, number, [b"x"] * 1000)
    with stream(topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="1000") as reader:
        assert reader.getDefaultReadLimit() == ReadMaxRows(1000)
        query = Query(reader)
        sizes = []
        while (parts := query.trigger()) is not None:
            sizes.append(sum(end - start for _, start, end in parts))
    assert sizes == [1000, 1000, 1000]


def test_a_trigger_that_asks_for_everything_gets_everything(topics: Any) -> None:
    """Trigger.Once passes the limits of the options over."""
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 100)
    limits = {"maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "10"}
    with stream(topics, subscribe=topic, startingOffsets="earliest", **limits) as reader:
        assert Query(reader).trigger(ReadAllAvailable()) == [(f"{topic}-0", 0, 100)]


def test_a_trigger_waits_for_enough_records_but_not_for_ever(topics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    # The reader's clock alone: the broker of these tests runs in this process, and needs the real one.
    monkeypatch.setattr(readers, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    topic = topics.make()
    topics.put(topic, 0, [b"x"])
    limits = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "30s"}
    with stream(topics, subscribe=topic, startingOffsets="earliest", **limits) as reader:
        assert reader.getDefaultReadLimit() == ReadMinRows(5)
        query = Query(reader)
        assert query.trigger() == [(f"{topic}-0", 0, 1)]
        topics.put(topic, 0, [b"x"] * 4)
        assert query.trigger() is None
        topics.put(topic, 0, [b"x"])
        assert query.trigger() == [(f"{topic}-0", 1, 6)]
        topics.put(topic, 0, [b"x"])
        clock[0] += 29
        assert query.trigger() is None
        clock[0] += 1
        assert query.trigger() == [(f"{topic}-0", 6, 7)]


def test_both_limits_hold_together(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 10)
    limits = {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "4"}
    with stream(topics, subscribe=topic, startingOffsets="earliest", **limits) as reader:
        query = Query(reader)
        assert [query.trigger() for _ in range(3)] == [[(f"{topic}-0", 0, 4)], [(f"{topic}-0", 4, 8)], None]


def test_available_now_ends_at_what_was_there_when_it_began(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 5)
    limits = {"maxOffsetsPerTrigger": "4", "minOffsetsPerTrigger": "3"}
    with stream(topics, subscribe=topic, startingOffsets="earliest", **limits) as reader:
        reader.prepareForTriggerAvailableNow()
        topics.put(topic, 0, [b"late"] * 5)
        query = Query(reader)
        assert query.trigger() == [(f"{topic}-0", 0, 4)]
        assert query.trigger() == [(f"{topic}-0", 4, 5)]
        assert query.trigger() is None


def test_a_start_at_the_end_is_never_after_the_end_of_the_batch(topics: Any) -> None:
    """Records that come while the query starts are no loss: they belong to the next run."""
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 5)
    late = {"startingTimestamp": "99999999999999", "startingOffsetsByTimestampStrategy": "latest"}
    for start in ({"startingOffsets": "latest"}, {"startingOffsets": json.dumps({topic: {"0": -1}})}, late):
        with stream(topics, subscribe=topic, **start) as reader:
            reader.prepareForTriggerAvailableNow()
            seen = reader._target[TopicPartition(topic, 0)]
            topics.put(topic, 0, [b"late"])
            query = Query(reader)
            assert query.trigger() == []
            assert query.last[topic] == {"0": seen}


def test_a_named_start_beyond_the_end_is_a_loss(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 5)
    with (
        stream(topics, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 9}})) as reader,
        pytest.raises(DataLoss, match="ends at offset 5"),
    ):
        Query(reader).trigger()


def test_the_progress_shows_the_end_of_the_topics(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 5)
    with stream(topics, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2") as reader:
        assert reader.reportLatestOffset() is None
        Query(reader).trigger()
        assert reader.reportLatestOffset() == {topic: {"0": 5}}


def test_a_topic_made_again_is_a_loss_or_read_from_its_beginning(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 2)
    committed = {topic: {"0": 100}}
    with (
        stream(topics, subscribe=topic) as reader,
        pytest.raises(DataLoss, match=f"{topic}-0 ends at offset 2, and the query had read up to 100"),
    ):
        Query(reader, committed).trigger()
    with stream(topics, subscribe=topic, failOnDataLoss="false") as reader:
        assert Query(reader, committed).trigger() == [(f"{topic}-0", 0, 2)]


def test_a_partition_that_is_gone_is_a_loss_or_left_out(topics: Any) -> None:
    topic = topics.make()
    topics.put(topic, 0, [b"x"] * 2)
    committed = {topic: {"0": 1}, "gone": {"0": 7}}
    with stream(topics, subscribe=topic) as reader, pytest.raises(DataLoss, match="gone-0 no longer exists"):
        Query(reader, committed).trigger()
    with stream(topics, subscribe=topic, failOnDataLoss="false") as reader:
        query = Query(reader, committed)
        assert query.trigger() == [(f"{topic}-0", 1, 2)]
        assert query.last == {topic: {"0": 2}}


def test_a_new_partition_that_has_lost_records_already_is_a_loss(topics: Any) -> None:
    topic = topics.make(2)
    for _ in range(3):
        topics.put(topic, 1, [b"x"])
    topics.admin().delete_records({TopicPartition(topic, 1): 2})
    committed = {topic: {"0": 0}}
    with stream(topics, subscribe=topic) as reader, pytest.raises(DataLoss, match=f"{topic}-1 begins at offset 2"):
        Query(reader, committed).trigger()
    with stream(topics, subscribe=topic, failOnDataLoss="false") as reader:
        assert Query(reader, committed).trigger() == [(f"{topic}-1", 2, 3)]


def test_an_empty_task_reads_nothing(topics: Any) -> None:
    """Spark makes one for a batch read without partitions."""
    from pyspark.sql.datasource import InputPartition

    reader = BatchReader(source_options({**topics.options, "subscribe": "x"}, streaming=False))
    assert list(reader.read(InputPartition(None))) == []
    assert not isinstance(InputPartition(None), Part)


def test_a_source_that_is_planned_twice_for_a_batch_holds_its_group(topics: Any) -> None:
    """As for a union; the next run of a plan that reads it once lets go."""
    topic = topics.make()
    topics.put(topic, 0, [b"a", b"b"])
    group, tp = f"{topic}-readers", TopicPartition(topic, 0)
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": group}

    def held(reader: StreamReader) -> int | None:
        at = reader._open_lookup().group.read_committed_offsets([tp]).get(tp)  # type: ignore[union-attr]
        return None if at is None else held_until(at)

    with stream(topics, **options) as reader:
        start = logged(reader.initialOffset())
        end = logged(reader.latestOffset(start, reader.getDefaultReadLimit()))
        reader.partitions(start, end)
        assert held(reader) is None
        reader.partitions(start, end)
        assert held(reader) == 2
    with stream(topics, **options) as reader:
        reader.partitions(start, end)
        assert held(reader) is None


@pytest.mark.slow
def test_what_a_driver_that_was_killed_left_open_does_not_keep_the_next_one_waiting(
    topics: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A transaction with offsets of the group stays open until its time is over."""
    topic = topics.make()
    topics.put(topic, 0, [b"a", b"b"])
    group, links = f"{topic}-readers", ConnectionCache(ClientConfig(bootstrap_servers=topics.bootstrap))
    left = BatchTransaction(links, f"{topic}-killed", 60_000)
    left.fence_producer()
    left.send_positions(group, {TopicPartition(topic, 0): OffsetAndMetadata(2)})
    options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": group}
    with stream(topics, **options, **{"kafka.default.api.timeout.ms": "300"}) as reader:
        start = logged(reader.initialOffset())
        end = logged(reader.latestOffset(start, reader.getDefaultReadLimit()))
        reader.partitions(start, end)
        assert "cannot read the offsets" not in caplog.text
    left.fence_producer()
    links.close_connections()
