"""Tombstones and markers stay until every replica has cleaned past them: reports, bounds, and checks of both.

The controller is played by hand; brokers, logs, requests and the cleaning are real.
"""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ignoring import partition_events
from tests.replication.brokers import T0, TOPIC_ID, Brokers, Member

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.record.batch import Record, batches_of, encode_batch, records_of
from ottla.record.control import Marker
from ottla.replication.partition.isr import InSyncReplicas
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition.replica_state import NEVER, PartitionState
from ottla.replication.tombstone_retention import RetentionRow, pack_rows, unpack_rows
from ottla.seams import Failure
from ottla.sim.mutants.ablation import without_safeguard
from ottla.types import UNBOUNDED, TopicPartition
from ottla.wire.messages import OffsetForLeaderEpochRequest

LOOK_MS = 100
QUICK = {"log.cleaner.backoff.ms": str(LOOK_MS), "log.cleaner.enable": "false"}
CLEANING = {"log.cleaner.backoff.ms": str(LOOK_MS)}
RETENTION_MS = 1000
COMPACT = TopicConfig(cleanup_policy=("compact",), delete_retention_ms=RETENTION_MS, min_insync_replicas=1)


def three(config: TopicConfig = COMPACT) -> Brokers:
    """Brokers 1, 2 and 3 with a compacted partition of ten records, each of which is a batch; 1 leads."""
    brokers = Brokers(3, QUICK)
    brokers.create(1, 2, 3, config=config)
    for at in range(10):
        brokers[1].produce(b"%d" % at)
    brokers.until(lambda: brokers.settled(1, 2, 3))
    return brokers


def cleaned(brokers: Brokers, **until: int) -> None:
    for name, offset in until.items():
        log = brokers[int(name[1:])].partition().log
        log.cleaning.checkpoint = offset
        log.home.on_log_cleaned(log.tp)


def bounds(brokers: Brokers, *nodes: int) -> list[int]:
    return [brokers[node].partition().log.removable_below for node in nodes or (1, 2, 3)]


# -- reports -----------------------------------------------------------------------------------------------------------


def test_the_bound_is_the_lowest_cleaned_offset_of_all_replicas() -> None:
    brokers = three()
    assert bounds(brokers) == [0, 0, 0]
    cleaned(brokers, b1=9, b2=7)
    brokers.run(5 * LOOK_MS)
    assert bounds(brokers) == [0, 0, 0], "broker 3 has cleaned nothing"
    cleaned(brokers, b3=4)
    brokers.until(lambda: bounds(brokers) == [4, 4, 4])
    cleaned(brokers, b1=5, b2=8, b3=9)
    brokers.until(lambda: bounds(brokers) == [5, 5, 5])


def test_a_partition_with_one_replica_has_no_bound() -> None:
    brokers = Brokers(1, properties=QUICK)
    brokers.create(1, config=COMPACT)
    brokers.run(3 * LOOK_MS)
    assert bounds(brokers, 1) == [UNBOUNDED]


def test_topics_that_are_not_compacted_are_not_spoken_of() -> None:
    brokers = three(config=TopicConfig())
    cleaned(brokers, b1=9, b2=9, b3=9)
    brokers.run(5 * LOOK_MS)
    assert bounds(brokers) == [0, 0, 0]


def test_a_replica_that_is_away_holds_the_bound_back() -> None:
    brokers = three()
    cleaned(brokers, b1=9, b2=9, b3=3)
    brokers.until(lambda: bounds(brokers) == [3, 3, 3])
    brokers[3].die()
    cleaned(brokers, b1=10, b2=10)
    brokers.run(20 * LOOK_MS)
    assert bounds(brokers, 1, 2) == [3, 3]
    brokers[3].boot()
    log = brokers[3].core.logs.get_log(T0)
    assert log is not None
    assert log.removable_below == 0, "before any LeaderAndIsr"
    assert brokers.send_state(3, T0) == [ErrorCode.NONE]
    assert bounds(brokers, 3) == [0]
    cleaned(brokers, b3=10)
    brokers.until(lambda: bounds(brokers) == [10, 10, 10])


def test_a_new_leader_knows_nothing_until_all_have_spoken() -> None:
    brokers = three()
    cleaned(brokers, b1=9, b2=9, b3=9)
    brokers.until(lambda: bounds(brokers) == [9, 9, 9])
    brokers[3].die()
    brokers.elect(2)
    assert bounds(brokers, 1, 2) == [0, 0]
    brokers.run(10 * LOOK_MS)
    assert bounds(brokers, 1, 2) == [0, 0]
    brokers[3].boot()
    cleaned(brokers, b1=9, b2=9)
    assert brokers.send_state(3, T0) == [ErrorCode.NONE]
    cleaned(brokers, b3=9)
    brokers.until(lambda: bounds(brokers) == [9, 9, 9])


def test_a_reassignment_asks_the_new_replicas_and_forgets_the_old_ones() -> None:
    brokers = Brokers(3, properties=QUICK)
    brokers.create(1, 2, config=COMPACT)
    for at in range(10):
        brokers[1].produce(b"%d" % at)
    brokers.until(lambda: brokers.settled(1, 2))
    cleaned(brokers, b1=9, b2=8)
    brokers.until(lambda: bounds(brokers, 1, 2) == [8, 8])
    state = brokers.states[T0]
    brokers.states[T0] = state._replace(replicas=(1, 2, 3), adding=(3,), partition_epoch=state.partition_epoch + 1)
    for node_id in (3, 1, 2):
        assert brokers.send_state(node_id, T0) == [ErrorCode.NONE]
    assert bounds(brokers) == [0, 0, 0]
    brokers.until(lambda: brokers.settled(1, 2, 3))
    brokers.run(5 * LOOK_MS)
    assert bounds(brokers) == [0, 0, 0]
    cleaned(brokers, b3=5)
    brokers.until(lambda: bounds(brokers) == [5, 5, 5])
    state = brokers.states[T0]
    brokers.states[T0] = state._replace(replicas=(1, 2), isr=(1, 2), partition_epoch=state.partition_epoch + 1)
    for node_id in (1, 2):
        assert brokers.send_state(node_id, T0) == [ErrorCode.NONE]
    brokers.until(lambda: bounds(brokers, 1, 2) == [8, 8])


def test_a_restarted_log_has_cleaned_nothing() -> None:
    brokers = three()
    cleaned(brokers, b1=9, b2=9, b3=9)
    brokers.until(lambda: bounds(brokers) == [9, 9, 9])
    brokers[3].turn(lambda: brokers[3].core.replicas.fetchers.unfollow_partition(brokers[3].partition()))
    brokers[3].turn(lambda: brokers[3].partition().follower_role.restart_at(0))
    brokers[3].turn(lambda: brokers[3].core.replicas.fetchers.follow_partition(brokers[3].partition()))
    assert brokers[3].partition().log.cleaned_until == 0
    brokers.until(lambda: brokers.settled(1, 2, 3))
    assert brokers[1].partition().leader_role.bound_removals() == 0, "its reports were about another log"
    brokers.run(5 * LOOK_MS)
    assert brokers[3].partition().log.cleaned_until == 0
    assert bounds(brokers, 1, 3) == [0, 0]


def test_more_partitions_than_one_report_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.replication.tombstone_retention.BATCH", 3)
    brokers = Brokers(2, properties=QUICK)
    tps = [TopicPartition("t", index) for index in range(8)]
    for tp in tps:
        brokers.create(1, 2, tp=tp, config=COMPACT)
        brokers[1].produce(b"a", tp=tp)
    brokers.until(lambda: all(brokers.settled(1, 2, tp=tp) for tp in tps))
    logs = [brokers[node].partition(tp).log for node in (1, 2) for tp in tps]
    for log in logs:
        log.cleaning.checkpoint = 1
        log.home.on_log_cleaned(log.tp)
    brokers.until(lambda: all(log.removable_below == 1 for log in logs))


def test_partitions_are_visited_only_after_a_change() -> None:
    brokers = Brokers(2, properties=QUICK)
    tps = [TopicPartition("t", index) for index in range(8)]
    for tp in tps:
        brokers.create(1, 2, tp=tp, config=COMPACT)
        brokers[1].produce(b"a", tp=tp)
    brokers.until(lambda: all(brokers.settled(1, 2, tp=tp) for tp in tps))
    due = [brokers[node].core.logs.bounds_due for node in (1, 2)]
    brokers.until(lambda: due == [{}, {}])
    brokers.run(5 * LOOK_MS)
    assert due == [{}, {}], "nothing has changed"
    # The leader waits for the follower: it alone stays due, with this partition alone.
    for node, visited in ((1, [tps[3]]), (2, [])):
        log = brokers[node].partition(tps[3]).log
        log.cleaning.checkpoint = 1
        log.home.on_log_cleaned(tps[3])
        brokers.run(2 * LOOK_MS)
        assert list(due[0]) == visited
    brokers.until(lambda: due == [{}, {}])
    assert [brokers[node].partition(tps[3]).log.removable_below for node in (1, 2)] == [1, 1]


@without_safeguard("replication.all_have_cleaned")
def test_without_the_safeguard_nothing_is_bounded() -> None:
    brokers = three()
    brokers.run(5 * LOOK_MS)
    assert bounds(brokers) == [UNBOUNDED] * 3


# -- checks of reports -------------------------------------------------------------------------------------------------


def report(brokers: Brokers, content: bytes, replica_id: int = 3) -> Any:
    """Broker 1's response to the office, which sends as broker 3."""
    request, answers = OffsetForLeaderEpochRequest(replica_id=replica_id, cleaned=content), []
    brokers.send(1, request, 4, answers.append)
    brokers.until(lambda: bool(answers))
    return answers[0]


def row(brokers: Brokers, offset: int, **changed: Any) -> bytes:
    return pack_rows([RetentionRow(TOPIC_ID, 0, brokers.states[T0].leader_epoch, offset)._replace(**changed)])


def test_only_the_living_broker_itself_is_believed_and_only_in_the_present_epoch() -> None:
    brokers = three()
    cleaned(brokers, b1=9, b2=9)
    brokers.run(3 * LOOK_MS)
    epoch = brokers[3].core.fence.broker_epoch
    for content in (
        pack(">q", epoch - 1) + row(brokers, 9),  # of a life before
        pack(">q", epoch) + row(brokers, 9, leader_epoch=7),
        pack(">q", epoch) + row(brokers, 9, topic_id=bytes(16)),
        pack(">q", epoch) + row(brokers, 9, partition=5),
    ):
        answer = report(brokers, content)
        assert all(each.offset == 0 for each in unpack_rows(answer.removable))
        assert brokers[1].partition().leader_role.bound_removals() == 0
    answer = report(brokers, pack(">q", epoch) + row(brokers, 2**62), replica_id=17)
    assert [each.offset for each in unpack_rows(answer.removable)] == [0]
    answer = report(brokers, pack(">q", epoch) + row(brokers, 2**62))
    assert [each.offset for each in unpack_rows(answer.removable)] == [9], "no replica has cleaned more than it has"


@pytest.mark.parametrize("content", [b"\0", bytes(9), bytes(8 + 31), bytes(8 + 33)])
def test_a_report_that_cannot_be_read_is_refused(content: bytes) -> None:
    brokers = three()
    answer = report(brokers, content)
    assert isinstance(answer, Failure) or not answer.removable
    assert bounds(brokers) == [0, 0, 0]


def test_reports_of_clients_are_ignored() -> None:
    brokers = three()
    cleaned(brokers, b1=9, b2=9)
    brokers.run(3 * LOOK_MS)
    brokers[1].core.dispatch._broker_listener = "ELSEWHERE"
    answer = report(brokers, pack(">q", brokers[3].core.fence.broker_epoch) + row(brokers, 9))
    assert (answer.topics, answer.removable) == ([], b"")
    assert brokers[1].partition().leader_role.bound_removals() == 0


@given(
    st.lists(st.tuples(st.binary(min_size=16, max_size=16), *[st.integers(0, 2**31 - 1)] * 2, st.integers(0, 2**62)))
)
def test_rows_are_read_as_they_were_written(rows: list[tuple[bytes, int, int, int]]) -> None:
    assert unpack_rows(pack_rows(RetentionRow(*each) for each in rows)) == rows


class Silent:
    """A contact without fetches."""

    used_ns = previous_ns = NEVER
    is_requested = True

    def on_replaced(self) -> None:
        """Nothing."""


steps = st.one_of(
    st.tuples(st.just("fetch"), st.integers(2, 4), st.integers(0, 20), st.integers(1, 3)),
    st.tuples(st.just("report"), st.integers(2, 5), st.integers(0, 20), st.integers(1, 3)),
    st.tuples(st.just("epoch"), st.just(0), st.just(0), st.just(0)),
    st.tuples(st.just("assign"), st.integers(2, 4), st.just(0), st.just(0)),
)


@given(st.lists(steps, max_size=40), st.integers(0, 20))
@without_safeguard("replication.broker_epoch_isr")
def test_the_bound_against_a_model(script: list[tuple[str, int, int, int]], own: int) -> None:
    """The model: per replica its position, its broker epoch, and its reports since the last time that either fell."""
    shared = PartitionContext(partition_events())
    in_sync = InSyncReplicas(1, shared)
    state = PartitionState(1, 0, (1,), 0, (1, 2, 3))
    in_sync.apply_state(state, 0, 0)
    at: dict[int, tuple[int, int]] = {}
    said: dict[int, int] = {}
    for what, node, offset, life in script:
        if what == "epoch":
            state = state._replace(leader_epoch=state.leader_epoch + 1)
            in_sync.apply_state(state, 0, 0)
            at, said = {}, {}
        elif what == "assign":
            state = state._replace(
                replicas=tuple(each for each in (1, 2, 3, 4) if (each in state.replicas) != (each == node)),
                partition_epoch=state.partition_epoch + 1,
            )
            in_sync.apply_state(state, None, 0)
            at = {each: place for each, place in at.items() if each in state.replicas}
            said = {each: until for each, until in said.items() if each in state.replicas}
        elif what == "fetch" and node in state.replicas:
            in_sync.on_follower_fetch(node, life, offset, 0, 20, 0, Silent())
            if node in at and (offset < at[node][0] or life != at[node][1]):
                said.pop(node, None)
            at[node] = offset, life
        elif what == "report":
            in_sync.note_cleaned(node, life, offset)
            if node in at and at[node][1] == life:
                said[node] = offset
        others = [each for each in state.replicas if each != 1]
        least = [min(said.get(each, 0), at.get(each, (0, 0))[0]) for each in others]
        assert in_sync.cleaned_by_all(own) == (min(own, *least) if others else UNBOUNDED)


# -- the story ---------------------------------------------------------------------------------------------------------

SMALL = COMPACT.with_overrides(
    {"segment.bytes": "1000", "index.interval.bytes": "100", "min.cleanable.dirty.ratio": "0"}
)


def write(member: Member, key: bytes, value: bytes | None, **producer: Any) -> None:
    now = member.core.process.clock.now()
    batch = memoryview(encode_batch([Record(0, now.wall_ms, key, value)], **producer))
    member.turn(lambda: member.partition().leader_role.append(batch, 1, now))


def fill(member: Member, name: bytes, count: int = 12) -> None:
    """Records of other keys, so that what was before lies in older segments."""
    for at in range(count):
        write(member, b"%s%d" % (name, at), bytes(100))


def end(member: Member, marker: Marker) -> None:
    now = member.core.process.clock.now()
    member.turn(lambda: member.partition().leader_role.append_marker(7, 0, marker, bumped=False, now=now))


def level(brokers: Brokers, *nodes: int) -> None:
    """Wait until these have all records, and know it. Their bytes differ by then: each cleans for itself."""
    brokers.until(lambda: len({brokers[node].leo() for node in nodes} | {brokers[node].hw() for node in nodes}) == 1)


def away_while_the_others_clean(brokers: Brokers) -> None:
    """Broker 3 misses a deletion, and an abort before its producer's next transaction. The others clean meanwhile,
    and more time passes than delete.retention.ms."""
    write(brokers[1], b"deleted", b"value")
    transaction = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    brokers[1].turn(lambda: setattr(brokers[1].partition().shared, "verifies", False))
    write(brokers[1], b"aborted", b"value", base_sequence=0, **transaction)
    fill(brokers[1], b"a")
    level(brokers, 1, 2, 3)
    brokers[3].die()
    brokers.states[T0] = brokers.states[T0]._replace(isr=(1, 2), partition_epoch=brokers.states[T0].partition_epoch + 1)
    for node in (1, 2):
        assert brokers.send_state(node, T0) == [ErrorCode.NONE]
    write(brokers[1], b"deleted", None)
    end(brokers[1], Marker(False, 0))
    write(brokers[1], b"later", b"value", base_sequence=1, **transaction)
    end(brokers[1], Marker(True, 0))
    fill(brokers[1], b"b")
    level(brokers, 1, 2)
    for _ in range(5):
        fill(brokers[1], b"c")
        level(brokers, 1, 2)
        brokers.run(2 * RETENTION_MS)


def back_and_leads(brokers: Brokers) -> dict[bytes, bytes | None]:
    """Broker 3 comes back, catches up, cleans, and leads: what a reader of committed records finds there."""
    brokers[3].boot()
    assert brokers.send_state(3, T0) == [ErrorCode.NONE]
    brokers.until(lambda: brokers[3].leo() == brokers[1].leo() and 3 in brokers.states[T0].isr)
    brokers.elect(3)
    brokers.until(lambda: brokers[3].hw() == brokers[3].leo() and 3 in brokers.states[T0].isr)
    return committed(brokers[3])


def committed(member: Member) -> dict[bytes, bytes | None]:
    """Key → value below the last stable offset, without what aborted transactions wrote."""
    partition = member.partition()
    content = memoryview(member.content())
    stable = partition.last_stable_offset
    aborted = partition.log.segments.aborted_transactions(0, stable)
    found: dict[bytes, bytes | None] = {}
    for pos, header in batches_of(content):
        if header.base_offset >= stable or header.is_control:
            continue
        if any(
            header.is_transactional
            and one.producer_id == header.producer_id
            and one.first_offset <= header.base_offset <= one.last_offset
            for one in aborted
        ):
            continue
        found |= {record.key or b"": record.value for record in records_of(content, pos, max_bytes=1 << 20)}
    return {key: value for key, value in found.items() if value is not None}


def checked(brokers: Brokers) -> list[str]:
    """The errors that a reader would find."""
    found = back_and_leads(brokers)
    leader = brokers[3].partition()
    wrong = [f"{key.decode()} is there" for key in (b"deleted", b"aborted") if key in found]
    if leader.last_stable_offset != leader.high_watermark:
        wrong.append("the last stable offset is stuck")
    return wrong


@pytest.mark.slow
def test_a_replica_away_for_longer_than_delete_retention_brings_nothing_back() -> None:
    brokers = Brokers(3, properties=CLEANING)
    brokers.create(1, 2, 3, config=SMALL)
    away_while_the_others_clean(brokers)
    assert checked(brokers) == []
    tombstones = brokers[1].content().count(b"deleted")
    assert tombstones, "it still waits for broker 3"
    for _ in range(4):
        fill(brokers[3], b"d")
        level(brokers, 1, 2, 3)
        brokers.run(2 * RETENTION_MS)
    assert all(b"deleted" not in brokers[node].content() for node in (1, 2, 3)), "then it goes everywhere"
    assert checked_again(brokers) == {}


def checked_again(brokers: Brokers) -> dict[bytes, bytes | None]:
    return {key: value for key, value in committed(brokers[3]).items() if key in (b"deleted", b"aborted")}


@pytest.mark.slow
def test_a_broker_that_starts_waits_for_the_others_with_its_first_pass() -> None:
    """Its cleaner begins as soon as the logs are loaded, before LeaderAndIsr names the other replicas."""
    brokers = Brokers(3, properties=CLEANING)
    brokers.create(1, 2, 3, config=SMALL)
    away_while_the_others_clean(brokers)
    cleaner = brokers[2].core.logs.cleaner
    assert cleaner is not None
    brokers[2].turn(cleaner.stop_workers)
    fill(brokers[1], b"e")
    level(brokers, 1, 2)
    brokers.run(10_000)  # the high watermark has been noted
    before = brokers[2].partition().log.cleaned_until
    brokers[2].die()
    brokers[2].boot()
    brokers.run(10 * LOOK_MS)
    log = brokers[2].core.logs.get_log(T0)
    assert log is not None
    assert log.cleaned_until > before, "it has cleaned"
    assert brokers.send_state(2, T0) == [ErrorCode.NONE]
    assert b"deleted" in brokers[2].content()


@pytest.mark.slow
@without_safeguard("replication.all_have_cleaned")
def test_without_the_safeguard_it_does() -> None:
    brokers = Brokers(3, CLEANING)
    brokers.create(1, 2, 3, config=SMALL)
    away_while_the_others_clean(brokers)
    assert checked(brokers) == ["deleted is there", "aborted is there"]
