"""Consumers that their group refuses: two polls and two commits after each error code of a coordinator.

A refused member delivers no record, commits nothing, and raises the reason each time. kafka-python and librdkafka get
the same answers for comparison.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from tests.client.consumer.coordinator import TOPIC, ScriptedGroup

from ottla.client import ClientError, CommitFailedError, Consumer, MalformedReplyError, RefusedError, TopicPartition
from ottla.client.aio import Consumer as AioConsumer
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey

WHERE = TopicPartition(TOPIC, 0)
FENCED = ErrorCode.FENCED_INSTANCE_ID
REFUSALS = [
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.INVALID_SESSION_TIMEOUT,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    FENCED,
]
"""Errors that do not pass."""
FORGETTING = [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION]
"""After these a member joins again."""
PASSING = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS,
]
_WITHIN_S = 180.0

pytestmark = pytest.mark.slow


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    made = ScriptedGroup()
    yield made
    made.close()


def settings(group: ScriptedGroup, **more: object) -> dict[str, Any]:
    words = {"bootstrap.servers": group.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    quick = {"heartbeat.interval.ms": 50, "session.timeout.ms": 6000, "max.poll.records": 1, "retry.backoff.ms": 10}
    return words | quick | {key.replace("_", "."): value for key, value in more.items()}


@pytest.fixture
def member(group: ScriptedGroup) -> Iterator[Consumer]:
    """A member of generation 1 that has read records, and commits automatically at short intervals."""
    with Consumer(settings(group, auto_commit_interval_ms=0)) as consumer:
        consumer.lost = []  # type: ignore[attr-defined]
        consumer.subscribe([TOPIC], on_lost=consumer.lost.extend)  # type: ignore[attr-defined]
        until(lambda: bool(consumer.poll(0.05)))
        yield consumer


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not true():
        assert time.monotonic() < deadline


def refused(call: Callable[[], object]) -> ClientError | None:
    try:
        call()
    except ClientError as error:
        return error
    return None


def refuse(group: ScriptedGroup, code: ErrorCode) -> None:
    for key in (ApiKey.HEARTBEAT, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP):
        group.codes[key] = code


def check_that_it_commits_nothing(group: ScriptedGroup, consumer: Consumer) -> None:
    """Commits in every way."""
    before = group.asked(ApiKey.OFFSET_COMMIT)
    told: list[Exception | None] = []
    for _ in range(2):
        with pytest.raises(CommitFailedError, match="not in group g"):
            consumer.commit({WHERE: 5})
        consumer.commit_async({WHERE: 5}, lambda _offsets, error: told.append(error))
        with pytest.raises(CommitFailedError, match="not in group g"):
            consumer.group_metadata()
    consumer.commit_async({WHERE: 5})  # runs the callbacks of the commits before it
    assert [type(error) for error in told] == [CommitFailedError] * 2
    assert group.asked(ApiKey.OFFSET_COMMIT) == before


@pytest.mark.parametrize("code", REFUSALS, ids=lambda code: code.name)
def test_a_refused_member_delivers_and_commits_nothing_and_raises_each_time(
    group: ScriptedGroup, member: Consumer, code: ErrorCode
) -> None:
    refuse(group, code)
    until(lambda: refused(lambda: member.poll(0.05)) is not None)
    for _ in range(2):
        with pytest.raises(RefusedError) as raised:
            member.poll(0.05)
        assert raised.value.code is code
        with pytest.raises(RefusedError):
            member.poll_table(0.05)
    assert member.lost == [WHERE]  # type: ignore[attr-defined]
    assert member.assignment() == set()
    check_that_it_commits_nothing(group, member)
    group.codes.clear()
    if code is FENCED:  # a successor has its instance id: it does not join again by itself
        joins = group.asked(ApiKey.JOIN_GROUP)
        for _ in range(3):
            assert isinstance(refused(lambda: member.poll(0.05)), RefusedError)
        assert group.asked(ApiKey.JOIN_GROUP) == joins
        member.subscribe([TOPIC])
    found: list[Any] = []
    until(lambda: refused(lambda: found.extend(member.poll(0.05))) is None and bool(found))
    member.commit()
    assert group.commits[-1][0] == group.generation


@pytest.mark.parametrize("code", FORGETTING, ids=lambda code: code.name)
@pytest.mark.parametrize("how", ["heartbeat", "commit"])
def test_a_forgotten_member_delivers_and_commits_nothing_before_it_is_in_again(
    group: ScriptedGroup, member: Consumer, code: ErrorCode, how: str
) -> None:
    group.codes[ApiKey.JOIN_GROUP] = ErrorCode.UNKNOWN_MEMBER_ID  # it stays outside until the test lets it in
    if how == "heartbeat":
        group.codes[ApiKey.HEARTBEAT] = code
        until(lambda: not member.poll(0.05) and not member.assignment())
    else:
        group.codes[ApiKey.OFFSET_COMMIT] = code
        with pytest.raises(CommitFailedError):
            member.commit({WHERE: 5})
    assert [member.poll(0.05) for _ in range(2)] == [[], []]
    assert member.lost == [WHERE]  # type: ignore[attr-defined]
    check_that_it_commits_nothing(group, member)
    group.codes.clear()
    until(lambda: bool(member.poll(0.05)))
    member.commit()
    assert group.commits[-1][0] == group.generation > 1


def test_a_member_fenced_by_a_commit_is_out_at_once(group: ScriptedGroup, member: Consumer) -> None:
    group.codes[ApiKey.OFFSET_COMMIT] = FENCED
    with pytest.raises(CommitFailedError):
        member.commit({WHERE: 5})
    for _ in range(2):
        assert getattr(refused(lambda: member.poll(0.05)), "code", None) is FENCED
    check_that_it_commits_nothing(group, member)


@pytest.mark.parametrize("key", [ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP])
def test_a_member_refused_while_joining_raises_each_time(group: ScriptedGroup, key: ApiKey) -> None:
    group.codes[key] = ErrorCode.GROUP_AUTHORIZATION_FAILED
    with Consumer(settings(group)) as consumer:
        consumer.subscribe([TOPIC])
        until(lambda: isinstance(refused(lambda: consumer.poll(0.05)), RefusedError))
        for _ in range(2):
            with pytest.raises(RefusedError, match="GROUP_AUTHORIZATION_FAILED"):
                consumer.poll(0.05)
        check_that_it_commits_nothing(group, consumer)
        group.codes.clear()
        found: list[Any] = []
        until(lambda: refused(lambda: found.extend(consumer.poll(0.05))) is None and bool(found))


def test_a_commit_that_is_retried_is_still_one_of_the_member_that_began_it(
    group: ScriptedGroup, member: Consumer
) -> None:
    """The group forgets the member meanwhile: without a member id an empty group would accept the commit."""
    group.codes[ApiKey.OFFSET_COMMIT] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    committing = threading.Thread(target=lambda: refused(lambda: member.commit({WHERE: 5})))
    committing.start()
    until(lambda: group.given[ApiKey.OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] > 0)
    group.codes[ApiKey.HEARTBEAT] = ErrorCode.UNKNOWN_MEMBER_ID
    until(lambda: member._coordinator.ensure_group().current_member.generation < 0)
    group.commits.clear()
    del group.codes[ApiKey.OFFSET_COMMIT]
    committing.join()
    assert set(group.commits) <= {(1, "member-1")}


@pytest.mark.parametrize("code", PASSING, ids=lambda code: code.name)
def test_a_retriable_error_costs_no_record_and_no_commit(
    group: ScriptedGroup, member: Consumer, code: ErrorCode
) -> None:
    group.codes[ApiKey.HEARTBEAT] = code
    beats = group.asked(ApiKey.HEARTBEAT)
    until(lambda: group.asked(ApiKey.HEARTBEAT) > beats and member.poll(0.05) is not None)
    group.codes.clear()
    for _ in range(2):
        until(lambda: bool(member.poll(0.05)))
        until(lambda: refused(lambda: member.commit({WHERE: 5})) is None or member.poll(0.05) is None)
    assert group.commits


def begin_rebalance(group: ScriptedGroup, step: ApiKey) -> None:
    """A rebalance that does not end: JoinGroup or SyncGroup is refused until the test lets it pass."""
    group.codes[step] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    group.codes[ApiKey.HEARTBEAT] = ErrorCode.REBALANCE_IN_PROGRESS


def is_refused_at(group: ScriptedGroup, step: ApiKey) -> bool:
    return group.given[step, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] > 0


@pytest.mark.parametrize("step", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP], ids=lambda step: step.name)
def test_a_member_commits_nothing_while_it_joins_again(group: ScriptedGroup, step: ApiKey) -> None:
    with Consumer(settings(group) | {"enable.auto.commit": False}) as consumer:
        consumer.subscribe([TOPIC])
        until(lambda: bool(consumer.poll(0.05)))
        begin_rebalance(group, step)
        until(lambda: consumer.poll(0.05) is not None and is_refused_at(group, step))
        before = group.asked(ApiKey.OFFSET_COMMIT)
        told: list[Exception | None] = []
        for _ in range(2):
            with pytest.raises(CommitFailedError, match="REBALANCE_IN_PROGRESS"):
                consumer.commit({WHERE: 5})
            consumer.commit_async({WHERE: 5}, lambda _offsets, error: told.append(error))
        assert consumer.group_metadata().generation_id == 1, "that of the last assignment"
        consumer.commit_async({}, None)
        assert [type(error) for error in told] == [CommitFailedError] * 2
        assert group.asked(ApiKey.OFFSET_COMMIT) == before
        group.codes.clear()
        until(lambda: bool(consumer.poll(0.05)))
        consumer.commit()
        assert group.commits[-1][0] == group.generation > 1


def test_an_asyncio_member_commits_nothing_while_it_joins_again(group: ScriptedGroup) -> None:
    async def scenario() -> None:
        async with AioConsumer(settings(group) | {"enable.auto.commit": False}) as consumer:
            await consumer.subscribe([TOPIC])
            await consumer.poll(5)
            begin_rebalance(group, ApiKey.SYNC_GROUP)
            while not is_refused_at(group, ApiKey.SYNC_GROUP):
                await consumer.poll(0.05)
            before = group.asked(ApiKey.OFFSET_COMMIT)
            with pytest.raises(CommitFailedError, match="REBALANCE_IN_PROGRESS"):
                await consumer.commit({WHERE: 5})
            assert group.asked(ApiKey.OFFSET_COMMIT) == before
            group.codes.clear()

    asyncio.run(scenario())


@pytest.mark.parametrize("call", [Consumer.close, Consumer.unsubscribe], ids=["close", "unsubscribe"])
def test_a_refused_member_commits_nothing_when_it_closes(
    group: ScriptedGroup, member: Consumer, call: Callable[[Consumer], None]
) -> None:
    refuse(group, FENCED)
    until(lambda: refused(member.group_metadata) is not None)
    before = group.asked(ApiKey.OFFSET_COMMIT)
    call(member)
    assert group.asked(ApiKey.OFFSET_COMMIT) == before
    assert member.lost == [WHERE]  # type: ignore[attr-defined]


def test_a_refused_member_does_not_deliver_prefetched_records(group: ScriptedGroup) -> None:
    with Consumer(settings(group) | {"max.poll.records": 500}) as consumer:
        consumer.subscribe([TOPIC])
        for _ in consumer:
            break
        refuse(group, FENCED)
        until(lambda: refused(consumer.group_metadata) is not None)
        assert isinstance(refused(lambda: consumer.poll(0.05)), RefusedError)
        assert isinstance(refused(lambda: consumer.poll(0.05)), RefusedError)


def test_an_undecodable_assignment_is_raised_each_time_until_the_next_one(group: ScriptedGroup) -> None:
    group.assignment = b"\0\0\0\7"
    with Consumer(settings(group)) as consumer:
        consumer.subscribe([TOPIC])
        until(lambda: isinstance(refused(lambda: consumer.poll(0.05)), MalformedReplyError))
        for _ in range(2):
            with pytest.raises(MalformedReplyError, match="assignment that cannot be decoded"):
                consumer.poll(0.05)
        assert group.generation == 1  # it does not cause more rebalances
        group.assignment = None
        consumer.enforce_rebalance()
        found: list[Any] = []
        until(lambda: refused(lambda: found.extend(consumer.poll(0.05))) is None and bool(found))


@pytest.mark.parametrize("code", [FENCED, ErrorCode.GROUP_AUTHORIZATION_FAILED], ids=lambda code: code.name)
def test_a_refused_asyncio_member_commits_nothing_and_raises_each_time(group: ScriptedGroup, code: ErrorCode) -> None:
    async def scenario() -> None:
        async with AioConsumer(settings(group, auto_commit_interval_ms=0) | {"max.poll.records": 100}) as consumer:
            await consumer.subscribe([TOPIC])
            async for _ in consumer:
                break
            refuse(group, code)
            group_thread = consumer._blocking._coordinator.ensure_group()
            await asyncio.to_thread(until, lambda: group_thread.current_member.generation < 0)
            before = group.asked(ApiKey.OFFSET_COMMIT)
            for _ in range(2):
                with pytest.raises(RefusedError) as raised:
                    await consumer.poll(0.05)
                assert raised.value.code is code
                with pytest.raises(CommitFailedError):
                    await consumer.commit({WHERE: 5})
                with pytest.raises(CommitFailedError):
                    await consumer.group_metadata()
            assert group.asked(ApiKey.OFFSET_COMMIT) == before
            group.codes.clear()
            if code is not FENCED:
                async with asyncio.timeout(_WITHIN_S):
                    while True:
                        with contextlib.suppress(RefusedError):
                            if await consumer.poll(0.05):
                                break

    asyncio.run(scenario())


class Afterwards(NamedTuple):
    """The effects of two polls and two commits of a client after it was refused."""

    delivered: int
    taken: int
    """Commits that a coordinator without checks accepted."""
    stale: int
    """Those of them with an old generation."""


def after(group: ScriptedGroup, delivered: int) -> Afterwards:
    return Afterwards(delivered, len(group.commits), group.stale)


def meet(group: ScriptedGroup, code: ErrorCode, poll: Callable[[], object] = lambda: None) -> None:
    """Refuses a heartbeat. A refused or forgotten member stays outside; a retriable error is over then.

    On a busy machine the member may have missed its session: it joins again, is refused there, and sends no heartbeat.
    poll: called meanwhile, for a client that joins again only within it.
    """
    outside = ErrorCode.UNKNOWN_MEMBER_ID if code in FORGETTING else code
    if code not in PASSING:
        group.codes[ApiKey.JOIN_GROUP] = outside
    if code in REFUSALS:
        group.codes[ApiKey.SYNC_GROUP] = outside
    group.codes[ApiKey.HEARTBEAT] = code

    def has_met() -> bool:
        poll()
        refusals = ((ApiKey.HEARTBEAT, code), (ApiKey.JOIN_GROUP, outside), (ApiKey.SYNC_GROUP, outside))
        return any(group.given[refusal] for refusal in refusals)

    until(has_met)
    if code in PASSING:
        group.codes.clear()


def ottla_afterwards(group: ScriptedGroup, code: ErrorCode) -> Afterwards:
    with Consumer(settings(group) | {"group.instance.id": "a", "enable.auto.commit": False}) as consumer:
        consumer.subscribe([TOPIC])
        until(lambda: bool(consumer.poll(0.05)))
        joined = group.generation + (code is ErrorCode.REBALANCE_IN_PROGRESS)
        meet(group, code)
        if code in REFUSALS:
            until(lambda: refused(lambda: consumer.poll(0.05)) is not None)
        elif code in FORGETTING:
            until(lambda: not consumer.poll(0.05) and not consumer.assignment())
        else:  # the heartbeat after the refused one: the member has handled that
            beats = group.asked(ApiKey.HEARTBEAT)
            until(lambda: group.asked(ApiKey.HEARTBEAT) > beats)
            until(lambda: bool(consumer.poll(0.05)) and group.generation >= joined)
        found: list[Any] = []
        for _ in range(2):
            refused(lambda: found.extend(consumer.poll(0.1)))
            refused(lambda: consumer.commit({WHERE: 5}))
        return after(group, len(found))


_QUEUED = 10
"""Polls that empty the queues of other clients and give them time to see the refusal; results do not matter."""


def librdkafka_afterwards(group: ScriptedGroup, code: ErrorCode) -> Afterwards:
    import confluent_kafka as ck

    words = {key: value for key, value in settings(group).items() if key != "max.poll.records"}
    consumer = ck.Consumer(words | {"group.instance.id": "a", "enable.auto.commit": False, "log_level": 0})
    consumer.subscribe([TOPIC])
    until(lambda: (message := consumer.poll(0.05)) is not None and not message.error())
    meet(group, code)

    def stopped() -> bool:
        message = consumer.poll(0.05)
        return message is not None and message.error() is not None and message.error().code() == ck.KafkaError._FATAL

    if code is FENCED:
        until(stopped)
    for _ in range(_QUEUED):
        consumer.poll(0.02)
    delivered = 0
    for _ in range(2):
        message = consumer.poll(0.1)
        delivered += message is not None and not message.error()
        with contextlib.suppress(ck.KafkaException):
            consumer.commit(offsets=[ck.TopicPartition(TOPIC, 0, 5)], asynchronous=False)
    consumer.close()
    return after(group, delivered)


def kafka_python_afterwards(group: ScriptedGroup, code: ErrorCode) -> Afterwards:
    import kafka

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=group.bootstrap, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False,
        group_instance_id="a", heartbeat_interval_ms=50, session_timeout_ms=6000, max_poll_records=1,
    )  # fmt: skip
    until(lambda: bool(consumer.partitions_for_topic(TOPIC)))  # without them it may assign itself no partition for ever
    consumer.subscribe([TOPIC])
    until(lambda: bool(consumer.poll(50)))

    def poll(timeout_ms: int) -> int:
        try:
            return sum(map(len, consumer.poll(timeout_ms).values()))
        except kafka.errors.KafkaError:
            return 0

    meet(group, code, lambda: poll(20))
    for _ in range(_QUEUED):
        poll(20)
    delivered = 0
    for _ in range(2):
        delivered += poll(100)
        with contextlib.suppress(kafka.errors.KafkaError):
            consumer.commit(
                {kafka.TopicPartition(TOPIC, 0): kafka.structs.OffsetAndMetadata(5, "", -1)}, timeout_ms=200
            )
    consumer.close(autocommit=False)
    return after(group, delivered)


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a thread of kafka-python
@pytest.mark.parametrize("code", [*REFUSALS, *FORGETTING, *PASSING], ids=lambda code: code.name)
def test_no_other_client_delivers_or_commits_less(code: ErrorCode) -> None:
    """The assertion's text shows what the other clients did; only ours is compared.

    librdkafka 2.16 reads and commits after every refusal but FENCED_INSTANCE_ID, at which it stops; forgotten, it
    commits in its old generation or with an empty member id. kafka-python 3.0 reads and commits after a refusal until
    it joins again, and after those that only a join repairs. After what passes all three continue.
    """
    right = Afterwards(2, 2, 0) if code in PASSING else Afterwards(0, 0, 0)
    found = {}
    for client in (ottla_afterwards, librdkafka_afterwards, kafka_python_afterwards):
        group = ScriptedGroup()
        try:
            found[client.__name__] = client(group, code)
        finally:
            group.close()
    ours = found[ottla_afterwards.__name__]
    assert all(did <= may for did, may in zip(ours, right, strict=True)), found
