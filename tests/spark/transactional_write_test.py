"""The exactly-once sink without Spark: attempts that die, sleep, come twice, against Ottla and Apache Kafka."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import confluent_kafka
import pyarrow as pa
import pytest
from tests.spark.attempts import Bench, rows

from ottla.client.admin.admin import Admin
from ottla.client.admin.transactions import TransactionAdmin
from ottla.client.admin.types import LATEST, NewTopic, Resource, ResourceType
from ottla.client.batch_transaction import ConnectionCache, end_transaction, is_fenced
from ottla.client.errors import ClientError, DeadlineError, refused_error, values_of
from ottla.client.settings import ClientConfig
from ottla.errors import ErrorCode
from ottla.server.embedded import EmbeddedBroker
from ottla.spark.connection_cache import cached_connections
from ottla.spark.errors import BadRows, ChangedUnit, Fenced, MarkersGone, StaleDriver
from ottla.spark.safeguards import SinkSafeguards
from ottla.spark.sink.exactly_once import MARKER, MARKERS, Marker
from ottla.spark.sink.task_claims import Claim, Claims, claims_of
from ottla.spark.sink.transactional_write import TransactionalWrite, write_task_batch
from ottla.types import TopicPartition

pytestmark = [pytest.mark.slow, pytest.mark.interop]
VALUES = [f"v{number}" for number in range(1000)]


def test_a_turn_is_written_once_however_often_it_is_attempted(bench: Bench) -> None:
    assert bench.run(bench.attempt(), VALUES) is None
    for _ in range(3):
        assert bench.run(bench.attempt(), VALUES) == Marker(bench.query, 0, len(VALUES))
    assert bench.run(bench.attempt(batch=1), ["next"]) is None
    assert bench.committed() == Counter([*VALUES, "next"])


def test_the_protocol_is_the_one_that_the_cluster_has_settled_on(bench: Bench, request: pytest.FixtureRequest) -> None:
    prepared = bench.prepared(bench.attempt(), VALUES)
    assert prepared is not None
    assert prepared[-1] == (1 if "kafka_1" in request.node.name else 2)


def test_coordinators_that_are_not_there_yet_are_waited_for() -> None:
    """On a broker without earlier transactions or groups."""
    with EmbeddedBroker() as broker:
        links = ConnectionCache(ClientConfig(bootstrap_servers=broker.bootstrap))
        values_of(Admin(links.cluster).create_topics([NewTopic("first", 1, 1, {})]))
        links.close_connections()
        bench = Bench(broker.bootstrap, "first", "query")
        assert bench.run(bench.attempt(), VALUES) is None
        assert bench.run(bench.attempt(), VALUES) is not None
        assert bench.committed() == Counter(VALUES)
        bench.close()


def test_what_is_written_already_is_not_read_again(bench: Bench) -> None:
    bench.run(bench.attempt(), VALUES)

    def coming() -> Iterator[pa.RecordBatch]:
        yield rows(["first"])
        raise AssertionError("asked for more")

    assert isinstance(write_task_batch(bench.attempt(), coming(), lambda: None, begin_without_rows=False), Marker)


def test_a_crash_before_the_end_leaves_nothing(bench: Bench) -> None:
    bench.prepared(bench.attempt(), ["lost", *VALUES])
    assert bench.run(bench.attempt(), VALUES) is None
    assert bench.committed() == Counter(VALUES)


def test_rows_are_not_written_again_after_a_crash_after_the_commit(bench: Bench) -> None:
    """The process died before the response arrived: it is not known that the transaction is committed."""
    first = bench.attempt()
    prepared = bench.prepared(first, VALUES)
    assert prepared is not None
    first.commit_prepared(prepared)  # type: ignore[arg-type]
    assert bench.run(bench.attempt(), VALUES) is not None
    assert bench.committed() == Counter(VALUES)


def test_an_error_in_the_middle_leaves_nothing_open(bench: Bench) -> None:
    """Readers of committed records continue at once, not after the transaction's timeout."""

    def breaking() -> Iterator[pa.RecordBatch]:
        yield rows(VALUES)
        raise ZeroDivisionError

    attempt = bench.attempt()
    attempt._held_bytes = 1 << 40  # so that the first rows are sent at once
    with pytest.raises(ZeroDivisionError):
        write_task_batch(attempt, breaking(), lambda: None, begin_without_rows=False)
    bench.run(bench.attempt(partition=1), ["other"])
    assert bench.committed() == Counter(["other"])


def test_rows_are_held_back_until_there_are_many(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow transformation keeps no transaction open, which would end by its time and keep readers waiting."""
    slow = bench.attempt()
    slow.take_over()
    slow.write_rows(rows(VALUES))
    bench.run(bench.attempt(partition=1), ["read at once"])
    seen = bench.committed().total()  # first: a broker may write the marker of the end after its response
    assert bench.written() == seen + 1
    monkeypatch.setattr("ottla.spark.sink.transactional_write.HELD_BYTES", 1)
    slow.write_rows(rows(["one more"]))
    assert bench.written() > len(VALUES)
    slow.give_up()


def test_a_zombie_that_wakes_at_the_end_is_fenced(bench: Bench) -> None:
    zombie = bench.attempt()
    prepared = bench.prepared(zombie, VALUES)
    assert bench.run(bench.attempt(), VALUES) is None
    with pytest.raises(Fenced, match="another attempt has taken over"):
        zombie.commit_prepared(prepared)  # type: ignore[arg-type]
    assert bench.committed() == Counter(VALUES)


def test_a_zombie_that_wakes_in_the_middle_is_fenced(bench: Bench) -> None:
    zombie = bench.attempt()
    assert zombie.take_over() is None
    zombie.write_rows(rows(VALUES))
    assert bench.run(bench.attempt(), VALUES) is None
    with pytest.raises(Fenced):
        zombie.prepare_commit()
    zombie.give_up()
    assert bench.run(bench.attempt(batch=1), ["next"]) is None
    assert bench.committed() == Counter([*VALUES, "next"])


class _FinishesFirst(TransactionalWrite):
    """Another attempt commits at the last moment before this one takes its transactional id."""

    other: Callable[[], None]

    def fence(self) -> None:
        self.other()
        super().fence()


@pytest.mark.parametrize("fence_first", [True, False])
def test_an_attempt_that_commits_at_the_last_moment_is_seen_because_it_is_fenced_first(
    bench: Bench, fence_first: bool
) -> None:
    """The safeguard is proved: without it the rows are there twice."""
    early = bench.attempt()
    assert early.take_over() is None
    early.write_rows(rows(VALUES))

    def other() -> None:
        prepared = early.prepare_commit()
        assert prepared is not None
        early.commit_prepared(prepared)

    late = bench.attempt(safeguards=SinkSafeguards(fence_first=fence_first), kind=_FinishesFirst)
    assert isinstance(late, _FinishesFirst)
    late.other = other
    assert (bench.run(late, VALUES) is not None) is fence_first
    assert bench.committed() == Counter(VALUES if fence_first else VALUES * 2)


def test_without_the_marker_in_the_transaction_rows_come_twice(bench: Bench) -> None:
    """That of every other test here is proved by this one."""
    off = SinkSafeguards(marker_inside=False)
    for _ in range(2):
        assert bench.run(bench.attempt(safeguards=off), VALUES) is None
    assert bench.committed() == Counter(VALUES * 2)


def test_a_driver_that_was_overtaken_writes_nothing(bench: Bench) -> None:
    for batch in range(3):
        bench.run(bench.attempt(batch=batch), [f"b{batch}"])
    with pytest.raises(StaleDriver, match=r"batch 2 is committed already"):
        bench.run(bench.attempt(batch=1), ["stale"])
    assert bench.committed() == Counter(["b0", "b1", "b2"])


def test_a_partition_without_rows_costs_nothing_and_keeps_its_marker(bench: Bench) -> None:
    bench.run(bench.attempt(), VALUES)
    empty = bench.attempt(batch=1)
    assert write_task_batch(empty, [rows([])], lambda: None, begin_without_rows=False) is None
    assert bench.run(bench.attempt(), VALUES) is not None


def test_a_whole_batch_takes_over_even_without_rows(bench: Bench) -> None:
    """A transaction prepared by an earlier attempt cannot be committed then."""
    first = bench.attempt()
    prepared = bench.prepared(first, ["other rows"])
    assert write_task_batch(bench.attempt(), [], lambda: None, begin_without_rows=True) is None
    with pytest.raises(Fenced):
        first.commit_prepared(prepared)  # type: ignore[arg-type]
    assert bench.committed() == Counter()


def test_partitions_and_queries_do_not_know_each_other(bench: Bench) -> None:
    one, two = bench.attempt(partition=0), bench.attempt(partition=1)
    waiting = bench.prepared(one, ["a"])
    assert bench.run(two, ["b"]) is None
    one.commit_prepared(waiting)  # type: ignore[arg-type]
    other = Bench(bench.bootstrap, bench.topic, bench.query + "-2")
    assert other.run(other.attempt(), ["c"]) is None
    other.close()
    assert bench.committed() == Counter(["a", "b", "c"])


def test_anybody_may_end_what_is_prepared(bench: Bench) -> None:
    prepared = bench.prepared(bench.attempt(), VALUES)
    for _ in range(2):  # a second time, as after a lost response
        end_transaction(bench.links(), prepared, commit=True)  # type: ignore[arg-type]
    assert bench.committed() == Counter(VALUES)


def test_rows_for_several_topics_are_in_one_transaction(bench: Bench) -> None:
    attempt = bench.attempt()
    named = replace(bench.options, topic=None)
    attempt = TransactionalWrite(bench.links(), named, attempt.turn)
    one = pa.record_batch(
        [pa.array(["a", "b"]), pa.array([bench.topic, bench.topic + "-dead"])], names=["value", "topic"]
    )
    values_of(Admin(bench.links().cluster).create_topics([NewTopic(bench.topic + "-dead", 1, 1, {})]))
    prepared = write_task_batch(attempt, [one], lambda: None, begin_without_rows=False)
    dead = Bench(bench.bootstrap, bench.topic + "-dead", "unused")
    assert (bench.committed(), dead.committed()) == (Counter(), Counter())
    attempt.commit_prepared(prepared)  # type: ignore[arg-type]
    assert (bench.committed(), dead.committed()) == (Counter("a"), Counter("b"))
    dead.close()


def test_the_topic_of_the_markers_is_compacted_and_empty(bench: Bench) -> None:
    bench.run(bench.attempt(), VALUES)
    admin, one = Admin(bench.links().cluster), Resource(ResourceType.TOPIC, MARKERS)
    entries = values_of(admin.describe_configs([one]))[one]
    assert [entry.value for entry in entries if entry.name == "cleanup.policy"] == ["compact"]
    assert values_of(admin.list_offsets({MARKER: LATEST}))[MARKER].offset == 0


def test_links_are_kept_for_the_next_task_and_closed_after_an_error(bench: Bench) -> None:
    config = ClientConfig(bootstrap_servers=bench.bootstrap)
    with cached_connections(config) as first:
        first.cluster.refresh()
    with cached_connections(config) as second:
        assert second is first
    with pytest.raises(ZeroDivisionError), cached_connections(config):
        raise ZeroDivisionError
    with cached_connections(config) as third:
        assert third is not first
        third.cluster.refresh()


def test_rows_cannot_be_written_to_the_topic_of_the_markers(bench: Bench) -> None:
    attempt = TransactionalWrite(bench.links(), replace(bench.options, topic=None), bench.attempt().turn)
    one = pa.record_batch([pa.array(["a"]), pa.array([MARKERS])], names=["value", "topic"])
    with pytest.raises(BadRows, match="where the sink commits its markers"):
        write_task_batch(attempt, [one], lambda: None, begin_without_rows=False)


def test_markers_that_are_gone_are_an_error_by_name(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted while the query runs: nothing is committed; the next start creates the topic again."""
    monkeypatch.setattr("ottla.spark.sink.markers._MARKER_PATIENCE_MS", 2_000)
    bench.delete_topic(MARKERS)
    with pytest.raises(MarkersGone, match="was deleted"):
        bench.run(bench.attempt(), VALUES)
    again = Bench(bench.bootstrap, bench.topic, bench.query)
    assert again.run(again.attempt(), VALUES) is None
    again.close()
    assert bench.committed() == Counter(VALUES)


# -- the offsets of the source's group ---------------------------------------------------------------------------------


@pytest.fixture
def source(bench: Bench) -> str:
    """A topic that is read, in words; nothing has to be in it."""
    name = f"{bench.topic}-source"
    links = bench.links()
    values_of(Admin(links.cluster).create_topics([NewTopic(name, 2, 1, {})]))
    links.cluster.topic(name, create=True)
    return name


def upto(source: str, *offsets: int) -> dict[str, dict[TopicPartition, int]]:
    """Offsets of the partitions, in the group `…-readers`."""
    return {f"{source}-readers": {TopicPartition(source, number): offset for number, offset in enumerate(offsets)}}


def test_the_group_moves_when_the_rows_count_and_not_before(bench: Bench, source: str) -> None:
    first = bench.attempt()
    prepared = bench.prepared(first, VALUES, upto(source, 10, 7))
    assert (bench.group(f"{source}-readers", source), bench.committed()) == ({}, Counter())
    first.commit_prepared(prepared)  # type: ignore[arg-type]
    assert bench.group(f"{source}-readers", source) == {0: 10, 1: 7}
    assert bench.committed() == Counter(VALUES)


def test_beside_the_transaction_the_group_is_ahead_of_the_rows(bench: Bench, source: str) -> None:
    """The safeguard is proved: this is what the test above would see."""
    off = SinkSafeguards(offsets_inside=False)
    assert bench.prepared(bench.attempt(safeguards=off), VALUES, upto(source, 10)) is not None
    assert (bench.group(f"{source}-readers", source), bench.committed()) == ({0: 10}, Counter())


def test_an_attempt_that_is_aborted_leaves_no_offset(bench: Bench, source: str) -> None:
    zombie = bench.attempt()
    prepared = bench.prepared(zombie, ["lost"], upto(source, 99, 99))
    assert bench.run(bench.attempt(), VALUES, upto(source, 10)) is None
    with pytest.raises(Fenced):
        zombie.commit_prepared(prepared)  # type: ignore[arg-type]
    assert bench.group(f"{source}-readers", source) == {0: 10}
    assert bench.committed() == Counter(VALUES)


def test_what_is_written_already_moves_no_group(bench: Bench, source: str) -> None:
    bench.run(bench.attempt(), VALUES, upto(source, 10))
    bench.run(
        bench.attempt(partition=1), VALUES, upto(source, 20)
    )  # the same partition, in another task of a later batch
    assert bench.run(bench.attempt(), VALUES, upto(source, 10)) is not None
    assert bench.group(f"{source}-readers", source) == {0: 20}


def test_a_task_without_rows_takes_over_and_commits_its_offsets(bench: Bench, source: str) -> None:
    """Otherwise an earlier attempt with rows could move the group back when the query is far ahead."""
    zombie = bench.attempt()
    prepared = bench.prepared(zombie, ["other rows"], upto(source, 10))
    assert bench.run(bench.attempt(), [], upto(source, 10)) is None
    assert bench.run(bench.attempt(partition=1, batch=1), ["next"], upto(source, 20)) is None
    with pytest.raises(Fenced):
        zombie.commit_prepared(prepared)  # type: ignore[arg-type]
    assert bench.group(f"{source}-readers", source) == {0: 20}
    assert bench.run(bench.attempt(), VALUES, upto(source, 10)) == Marker(bench.query, 0, 0)
    assert bench.committed() == Counter(["next"])


def test_the_group_may_have_members(bench: Bench, source: str) -> None:
    """A transaction is not asked for a generation, unlike a plain commit."""
    settings = {"bootstrap.servers": bench.bootstrap, "group.id": f"{source}-readers", "enable.auto.commit": False}
    member = confluent_kafka.Consumer(settings)
    member.subscribe([source])
    until = time.monotonic() + 60
    while not member.assignment() and time.monotonic() < until:
        member.poll(0.1)
    assert member.assignment()
    assert bench.run(bench.attempt(), VALUES, upto(source, 10)) is None
    (found,) = member.committed([confluent_kafka.TopicPartition(source, 0)], 30)
    assert found.offset == 10
    member.close()


def test_refused_offsets_fail_the_rows_only_when_they_are_demanded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.spark.sink.markers._OFFSETS_PATIENCE_MS", 2_000)
    gone = upto("no-such-topic", 1)
    once = replace(bench.options.once, offsets="true")
    demanding = TransactionalWrite(bench.links(), replace(bench.options, once=once), bench.attempt().turn)
    with pytest.raises(DeadlineError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        bench.prepared(demanding, VALUES, gone)
    assert bench.run(bench.attempt(), VALUES, gone) is None
    assert "is committed after the batch" in caplog.text
    assert bench.committed() == Counter(VALUES)


def test_rows_of_earlier_batches_do_not_take_the_group_back(bench: Bench, source: str) -> None:
    """As a join of streams makes them. Another query, which began elsewhere, does."""
    bench.run(bench.attempt(), VALUES, upto(source, 10, 10))
    later = bench.attempt(batch=1)
    assert later.offsets_ahead(upto(source, 9, 11)) == {f"{source}-readers": {TopicPartition(source, 1): 11}}
    assert later.offsets_ahead(upto(source, 10, 3)) == {}
    other = Bench(bench.bootstrap, bench.topic, bench.query + "-2")
    assert other.attempt().offsets_ahead(upto(source, 9, 11)) == upto(source, 9, 11)
    other.close()


def claimed(bench: Bench, unit: str, partition: int = 0, sink: str = "sink") -> TransactionalWrite:
    """An attempt of a run that writes batch 0 in this unit."""
    attempt = bench.attempt(partition=partition)
    turn = attempt.turn._replace(sink=sink)
    attempt.claims = claims_of(bench.links(), turn, unit, 60_000, kind="stream", reads=False)
    return attempt


def test_a_batch_that_is_committed_in_part_is_not_written_as_a_whole(bench: Bench) -> None:
    bench.run(claimed(bench, "partition", 1), ["one"])
    with pytest.raises(ChangedUnit, match="begun with exactlyOnce=partition"):
        bench.prepared(claimed(bench, "batch"), ["one", "two"])
    with pytest.raises(ChangedUnit, match="begun with sink=sink"):
        bench.prepared(claimed(bench, "partition", 0, "other"), ["two"])
    bench.run(claimed(bench, "partition", 0), ["two"])
    assert bench.committed() == Counter(["one", "two"])


@pytest.mark.parametrize(("rows_ms", "claim_ms"), [(600_000, 10_000), (5_000, 5_000)])
def test_the_transaction_of_a_claim_ends_soon_after_the_death_of_its_task(
    bench: Bench, rows_ms: int, claim_ms: int
) -> None:
    """The next run of the query waits for it: not as long as a batch may take."""
    claims = claims_of(bench.links(), bench.attempt().turn, "batch", rows_ms, kind="stream", reads=False)
    claims[0].write_claim()
    view = TransactionAdmin(bench.links().cluster).describe_transaction(f"ottla-{bench.query}-unit")
    assert view.timeout_ms == claim_ms


def test_a_task_that_failed_before_its_commit_claims_nothing(bench: Bench) -> None:
    attempt = claimed(bench, "partition", 1)
    attempt.take_over()
    attempt.write_rows(rows(["lost"]))
    bench.run(claimed(bench, "batch"), ["one", "two"])
    assert isinstance(bench.run(claimed(bench, "partition", 2), ["three"]), Marker)
    with pytest.raises((ClientError, StaleDriver)):
        attempt.prepare_commit()
    assert bench.committed() == Counter(["one", "two"])


def test_a_whole_batch_that_is_committed_is_known_to_every_partition(bench: Bench) -> None:
    bench.run(claimed(bench, "batch"), ["one", "two"])
    for partition in range(3):
        assert bench.run(claimed(bench, "partition", partition), ["two"]) == Marker(bench.query, 0, 2)
    assert bench.committed() == Counter(["one", "two"])


def test_a_whole_batch_that_was_not_committed_can_be_written_by_partition(bench: Bench) -> None:
    prepared = bench.prepared(claimed(bench, "batch"), ["lost", "too"])
    for partition in range(2):
        assert bench.run(claimed(bench, "partition", partition), [f"p{partition}"]) is None
    with pytest.raises(ClientError) as caught:
        end_transaction(bench.links(), prepared, commit=True)  # type: ignore[arg-type]
    assert is_fenced(caught.value)
    assert bench.committed() == Counter(["p0", "p1"])


def test_of_attempts_that_claim_a_batch_at_the_same_time_all_write_it_in_one_unit(bench: Bench) -> None:
    def claim(number: int) -> str:
        unit = "partition" if number % 2 else "batch"
        try:
            claimed(bench, unit, number).claims[0].write_claim()
        except (ChangedUnit, StaleDriver, Fenced) as error:
            return type(error).__name__
        return unit

    with ThreadPoolExecutor(8) as pool:
        found = Counter(pool.map(claim, range(8)))
    assert found["partition"] == 4, f"a batch that only was claimed as a whole gives way: {found}"


class _OtherNamesDenied(Claims):
    """A client whose ACLs allow names with the query's prefix alone."""

    def _stored_claim(self) -> Claim | None:
        if self._name != self._own_name:
            raise refused_error(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"positions of group {self._name}")
        return super()._stored_claim()


def test_a_client_that_may_not_use_the_common_name_claims_under_its_own(bench: Bench) -> None:
    claim = Claim(bench.query, 0, "partition", "sink", "mine-")
    claims = _OtherNamesDenied(bench.links(), claim, 0, 60_000, alone=True)
    claims.write_claim()
    assert claims._name == f"mine-{bench.query}-unit"
    with pytest.raises(ChangedUnit):
        _OtherNamesDenied(bench.links(), claim._replace(unit="batch"), 0, 60_000, alone=True).check_claim()
