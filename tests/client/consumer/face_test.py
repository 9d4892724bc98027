"""The consumer against a broker: positions, reading, misuse. `BROKER=kafka` runs it on Apache Kafka."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
from tests.client.consumer.conftest import Make, create, read, write

from ottla.client import (
    Cluster,
    ConfigError,
    DeserializationError,
    Producer,
    RefusedError,
    TopicPartition,
    UsageError,
    WakeupError,
)
from ottla.client.consumer import Consumer, OffsetAndMetadata
from ottla.errors import ErrorCode

pytestmark = pytest.mark.slow


def values(records: Any) -> list[str]:
    return [record.value.decode() for record in records]


def test_assigned_partitions_are_read_in_order(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, [str(n) for n in range(1200)])
    reader = consumer(group_id=None)
    tp = TopicPartition(topic, 0)
    reader.assign([tp])
    first = read(reader, 1)
    assert len(first) == 500  # max.poll.records
    assert reader.position(tp) == 500
    found = first + read(reader, 700)
    assert values(found) == [str(n) for n in range(1200)]
    assert [record.offset for record in found] == list(range(1200))
    assert (found[0].topic, found[0].partition, found[0].timestamp_type, found[0].leader_epoch) == (topic, 0, 0, 0)
    assert reader.lag(tp) == 0


def test_seek_goes_anywhere(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, [str(n) for n in range(10)])
    reader = consumer(group_id=None)
    tp = TopicPartition(topic, 0)
    reader.assign([tp])
    reader.seek(tp, 7)
    assert values(read(reader, 3)) == ["7", "8", "9"]
    reader.seek_to_beginning()
    assert reader.position(tp) == 0
    assert values(read(reader, 10))[0] == "0"
    reader.seek_to_end([tp])
    assert reader.position(tp) == 10
    reader.seek(tp, OffsetAndMetadata(8, 0))
    assert values(read(reader, 2)) == ["8", "9"]


def test_commits_do_not_wait_behind_a_fetch(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, ["a"])
    reader = consumer(group_id=f"{topic}-beside", fetch_max_wait_ms=25_000, default_api_timeout_ms=20_000)
    tp = TopicPartition(topic, 0)
    reader.assign([tp])
    read(reader, 1)
    reader.poll(0.2)  # the fetch behind the end stays at the broker
    reader.commit()
    assert reader.committed([tp]) == {tp: OffsetAndMetadata(1, 0)}


def test_a_seek_after_a_poll_drops_what_was_read_ahead(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, [str(n) for n in range(100)])
    reader = consumer(group_id=None, max_poll_records=5)
    tp = TopicPartition(topic, 0)
    reader.assign([tp])
    read(reader, 5)
    reader.seek(tp, 50)
    assert values(read(reader, 5)) == ["50", "51", "52", "53", "54"]


def test_paused_partitions_wait_at_their_position(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, [str(n) for n in range(40)], None)
    reader = consumer(group_id=None, max_poll_records=5)
    places = [TopicPartition(topic, number) for number in range(4)]
    reader.assign(places)
    read(reader, 5)
    reader.pause(places[:2])
    assert reader.paused() == set(places[:2])
    at = [reader.position(tp) for tp in places[:2]]
    found = read(reader, sum(10 - reader.position(tp) for tp in places[2:]))
    assert {record.partition for record in found} <= {2, 3}
    assert [reader.position(tp) for tp in places[:2]] == at
    assert reader.poll(0.1) == []
    reader.resume(places[:2])
    assert {record.partition for record in read(reader, 20 - sum(at))} == {0, 1}


@pytest.mark.parametrize(("policy", "first"), [("earliest", "0"), ("latest", "5"), ("by_duration:PT1H", "0")])
def test_without_a_position_the_policy_decides(
    consumer: Make, cluster: Cluster, topic: str, policy: str, first: str
) -> None:
    write(cluster, topic, [str(n) for n in range(5)])
    reader = consumer(auto_offset_reset=policy)
    reader.assign([TopicPartition(topic, 0)])
    reader.position(TopicPartition(topic, 0))  # looked up before the next record is written
    write(cluster, topic, ["5"])
    assert values(read(reader, 1))[0] == first


def test_without_a_policy_no_position_is_an_error(consumer: Make, topic: str) -> None:
    reader = consumer(auto_offset_reset="none")
    reader.assign([TopicPartition(topic, 0)])
    with pytest.raises(RefusedError, match=r"auto\.offset\.reset is none") as refused:
        reader.poll(180)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    reader.seek(TopicPartition(topic, 0), 99)
    with pytest.raises(RefusedError) as refused:
        reader.poll(180)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_an_offset_that_is_gone_is_reset(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, ["only"])
    reader = consumer(group_id=None)
    reader.assign([TopicPartition(topic, 0)])
    reader.seek(TopicPartition(topic, 0), 1000)
    assert values(read(reader, 1)) == ["only"]


def test_offsets_are_found_by_time_and_at_both_ends(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, ["a", "b"])
    reader = consumer(group_id=None)
    places = [TopicPartition(topic, number) for number in range(2)]
    assert reader.beginning_offsets(places) == dict.fromkeys(places, 0)
    assert reader.end_offsets(places) == {places[0]: 2, places[1]: 0}
    assert reader.offsets_for_times(dict.fromkeys(places, 1)) == {places[0]: 0, places[1]: None}
    assert reader.partitions_for_topic(topic) == [TopicPartition(topic, number) for number in range(4)]
    assert topic in reader.list_topics()
    assert "__consumer_offsets" not in reader.list_topics()


def test_commits_are_found_again(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, [str(n) for n in range(10)])
    tp = TopicPartition(topic, 0)
    reader = consumer(enable_auto_commit=False, max_poll_records=4)
    reader.assign([tp])
    read(reader, 4)
    assert reader.committed([tp]) == {tp: None}
    reader.commit()
    assert reader.committed([tp]) == {tp: OffsetAndMetadata(4, 0)}
    reader.commit({tp: OffsetAndMetadata(6, 0, "manual assignment")})
    reader.close()
    again = consumer()
    again.assign([tp])
    assert again.committed([tp]) == {tp: OffsetAndMetadata(6, 0, "manual assignment")}
    assert values(read(again, 4)) == ["6", "7", "8", "9"]


def test_asynchronous_commits_call_back_in_order(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, ["x"] * 10)
    tp = TopicPartition(topic, 0)
    reader = consumer(enable_auto_commit=False)
    reader.assign([tp])
    read(reader, 10)
    told: list[Any] = []
    for offset in range(5):
        reader.commit_async({tp: offset}, lambda offsets, error: told.append((offsets[tp].offset, error)))
    reader.commit({tp: 9})
    assert told == [(offset, None) for offset in range(5)]
    assert reader.committed([tp]) == {tp: OffsetAndMetadata(9)}


def test_positions_are_committed_automatically(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, [str(n) for n in range(10)])
    tp = TopicPartition(topic, 0)
    reader = consumer(max_poll_records=3, auto_commit_interval_ms=1)
    reader.assign([tp])
    read(reader, 3)
    deadline = time.monotonic() + 180
    # A slow broker may also have received a commit of the position before the first record.
    while (found := reader.committed([tp])[tp]) is None or found.offset != reader.position(tp):
        assert time.monotonic() < deadline
        reader.pause([tp])
        reader.poll(0.05)
    reader.resume([tp])
    read(reader, 3)
    reader.close()
    assert consumer().committed([tp])[tp] == OffsetAndMetadata(found.offset + 3, 0)


def test_tables_hold_what_poll_would_give(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, [str(n) for n in range(3000)], None)
    reader = consumer(group_id=None, max_poll_records=7)
    reader.assign([TopicPartition(topic, number) for number in range(4)])
    rows = reader.poll(180)
    found = [(record.partition, record.offset, record.value) for record in rows]
    while len(found) < 3000:
        table = reader.poll_table(0.5)
        found += zip(*(table.column(each).to_pylist() for each in ("partition", "offset", "value")), strict=True)
    assert sorted(found) == sorted((n % 4, n // 4, str(n).encode()) for n in range(3000))
    assert all(reader.lag(tp) == 0 for tp in reader.assignment())


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_a_table_has_as_many_batches_as_its_limit_allows(
    consumer: Make, cluster: Cluster, topic: str, codec: str
) -> None:
    """A few compressed bytes can be gigabytes: what does not fit is returned by the next calls."""
    settings = {"bootstrap.servers": cluster.config.bootstrap_servers, "compression.type": codec}
    with Producer(settings) as producer:
        for at in range(40):
            producer.send(topic, bytes(100_000), key=b"%d" % at, partition=at % 2)
            if at % 3 == 0:
                producer.flush()
    reader = consumer(group_id=None, auto_offset_reset="earliest")
    reader.assign([TopicPartition(topic, number) for number in range(2)])
    found: list[int] = []
    while len(found) < 30:
        table = reader.poll_table(5.0, max_bytes=350_000)
        assert table.num_rows <= 3
        found += [int(key) for key in table["key"].to_pylist()]
    # Positions are those after the rows, so another way of reading continues there.
    while len(found) < 40:
        found += [int(record.key) for record in reader.poll(5.0)]
    assert [each for each in found if each % 2] == list(range(1, 40, 2))
    assert [each for each in found if each % 2 == 0] == list(range(0, 40, 2))


def test_values_are_deserialized_and_bad_ones_can_be_passed(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, ["1", "2", "x", "4"])
    tp = TopicPartition(topic, 0)
    reader = consumer(group_id=None, value_deserializer=lambda _, data: int(data))
    reader.assign([tp])
    assert [record.value for record in read(reader, 2)] == [1, 2]
    for _ in range(2):
        with pytest.raises(DeserializationError, match="offset 2 cannot be deserialized"):
            read(reader, 1)
    assert reader.position(tp) == 2
    reader.seek(tp, 3)
    assert [record.value for record in read(reader, 1)] == [4]


def test_interceptors_see_records_and_commits(consumer: Make, cluster: Cluster, topic: str) -> None:
    class Interceptor:
        def __init__(self) -> None:
            self.commits: list[int] = []

        def on_consume(self, records: list[Any]) -> list[Any]:
            return [record._replace(value=record.value.upper()) for record in records]

        def on_commit(self, offsets: Any) -> None:
            self.commits += [each.offset for each in offsets.values()]

    write(cluster, topic, ["a"])
    interceptor = Interceptor()
    reader = consumer(interceptor_classes=[interceptor], enable_auto_commit=False)
    reader.assign([TopicPartition(topic, 0)])
    assert values(read(reader, 1)) == ["A"]
    reader.commit()
    assert interceptor.commits == [1]


def test_wakeup_ends_a_poll_once(consumer: Make, topic: str) -> None:
    reader = consumer(group_id=None)
    reader.assign([TopicPartition(topic, 0)])
    threading.Timer(0.3, reader.wakeup).start()
    with pytest.raises(WakeupError):
        reader.poll(180)
    assert reader.poll(0) == []
    reader.wakeup()
    with pytest.raises(WakeupError):
        reader.poll(180)


def test_misuse_raises_usage_error(consumer: Make, topic: str) -> None:
    reader = consumer(group_id=None)
    tp = TopicPartition(topic, 0)
    for misuse in (
        lambda: reader.poll(0),
        lambda: reader.seek(tp, 0),
        lambda: reader.subscribe([topic]),
        reader.commit,
        reader.commit_async,
        reader.enforce_rebalance,
        lambda: reader.offsets_for_times({tp: -1}),
    ):
        with pytest.raises(UsageError):
            misuse()
    reader.assign([tp])
    with pytest.raises(UsageError, match="negative"):
        reader.seek(tp, -5)
    reader.close()
    reader.close()
    with pytest.raises(UsageError, match="closed"):
        reader.poll(0)


def test_a_string_is_not_a_list_of_topics(consumer: Make, topic: str) -> None:
    with pytest.raises(UsageError, match="takes a list"):
        consumer().subscribe(topic)


def test_a_second_thread_is_refused(consumer: Make, topic: str) -> None:
    reader = consumer(group_id=None)
    reader.assign([TopicPartition(topic, 0)])

    def poll() -> None:
        with pytest.raises(WakeupError):
            reader.poll(180)

    polling = threading.Thread(target=poll)
    polling.start()
    while reader._guard._owner != polling.ident:
        time.sleep(0.001)
    with pytest.raises(UsageError, match="another thread"):
        reader.assignment()
    reader.wakeup()
    polling.join()
    assert reader.assignment()


def test_unsubscribe_takes_an_assignment_back(consumer: Make, topic: str) -> None:
    reader = consumer(group_id=None)
    reader.assign([TopicPartition(topic, 0)])
    reader.unsubscribe()
    assert reader.assignment() == set()
    with pytest.raises(UsageError, match="no subscription and no assignment"):
        reader.poll()


def test_a_child_process_cannot_use_it(consumer: Make, topic: str) -> None:
    reader = consumer(group_id=None)
    reader.assign([TopicPartition(topic, 0)])
    child = os.fork()
    if not child:
        try:
            reader.poll(0)
        except UsageError as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert reader.poll(0) == []


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"partition.assignment.strategy": "best"}, "best is not known"),
        ({"heartbeat.interval.ms": 5000, "session.timeout.ms": 5000}, "not below"),
        ({"group.instance.id": "i"}, "needs a group.id"),
        ({"group.id": ""}, "must not be empty"),
        ({"auto.offset.reset": "by_duration:yesterday"}, "is not known"),
        ({"max.poll.records": 0}, "out of range"),
        ({"max.poll.records": "many"}, "is not a whole number"),
        ({"group.idd": "g"}, "Did you mean group.id"),
        ({"bootstrap.servers": "x:y"}, "is not an address"),  # no socket is left open
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], cause: str) -> None:

    with pytest.raises(ConfigError, match=cause):
        Consumer(settings)


def test_a_topic_that_comes_later_is_read(consumer: Make, cluster: Cluster, name: str) -> None:
    reader = consumer()
    reader.subscribe([name])
    assert reader.poll(0.5) == []
    create(cluster, name, 1)
    write(cluster, name, ["here"])
    assert values(read(reader, 1)) == ["here"]


def test_an_iteration_that_is_left_has_read_no_more_than_it_gave(consumer: Make, cluster: Cluster, topic: str) -> None:
    write(cluster, topic, [str(n) for n in range(20)])
    tp = TopicPartition(topic, 0)
    reader = consumer()
    reader.subscribe([topic])
    for record in reader:
        if record.offset == 3:
            reader.commit()
        if record.offset == 5:
            break
    assert reader.committed([tp]) == {tp: OffsetAndMetadata(4, 0)}
    assert (reader.position(tp), reader.lag(tp)) == (6, 14)
    assert next(iter(reader)).offset == 6
    assert reader.poll(180)[0].offset == 7
    reader.seek(tp, 10)
    assert next(iter(reader)).offset == 10
    reader.close()  # close commits
    assert consumer().committed([tp]) == {tp: OffsetAndMetadata(11, -1)}
