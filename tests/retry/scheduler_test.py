"""Schedulers against a model that is a dictionary: the embedded one, and Redis.

Zone: real.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.retry.redis_server import RedisServer

from ottla.retry.errors import SchedulerError, SchedulerLostError
from ottla.retry.redis_scheduler import RedisScheduler
from ottla.retry.scheduler import EmbeddedScheduler, Ref, Scheduler
from ottla.types import TopicPartition

Make = Callable[[], Scheduler]
PLACES = [TopicPartition("a.retry.1", 0), TopicPartition("a.retry.1", 1), TopicPartition("a.retry.2", 0)]


def against_model(scheduler: Scheduler, seed: int, steps: int) -> None:
    """Random calls, the same answers as from a dictionary."""
    draw = random.Random(seed)
    waiting: dict[tuple[TopicPartition, int], int] = {}
    claimed: list[Ref] = []
    ends = dict.fromkeys(PLACES, 0)
    for tp in PLACES:
        assert scheduler.open(tp, 0, "") is None
    for _ in range(steps):
        step = draw.choice(["add", "add", "claim", "claim", "done", "release"])
        if step == "add":
            tp = draw.choice(PLACES)
            entries = [(ends[tp] + n, draw.randrange(1000)) for n in range(draw.randrange(1, 20))]
            ends[tp] += len(entries)
            scheduler.add(tp, entries, ends[tp])
            waiting |= {(tp, offset): due for offset, due in entries}
        elif step == "claim":
            until, limit = draw.randrange(1000), draw.randrange(1, 30)
            found = scheduler.claim(until, limit)
            due = {place for place, at in waiting.items() if at <= until}
            assert len(found) == min(limit, len(due))
            assert found == sorted(found)
            for each in found:
                assert waiting.pop((each.tp, each.offset)) == each.due_ms
            claimed += found
        else:
            draw.shuffle(claimed)
            some, claimed = claimed[: len(claimed) // 2], claimed[len(claimed) // 2 :]
            (scheduler.done if step == "done" else scheduler.release)(some)
            if step == "release":
                waiting |= {(each.tp, each.offset): each.due_ms for each in some}
        head = scheduler.next_due()
        assert (head is None) == (not waiting) or step == "claim"
        assert head is None or not waiting or head <= min(waiting.values())


@pytest.mark.parametrize("seed", range(20))
def test_the_embedded_scheduler_agrees_with_a_dictionary(seed: int) -> None:
    against_model(EmbeddedScheduler(), seed, 200)


def test_a_partition_that_was_closed_is_forgotten_and_others_stay() -> None:
    scheduler = EmbeddedScheduler()
    for tp in PLACES:
        scheduler.open(tp, 0, "")
        scheduler.add(tp, [(1, 5), (2, 6)], 3)
    scheduler.close(PLACES[1])
    claimed = scheduler.claim(10, 10)
    assert claimed == sorted(Ref(due, tp, offset) for tp in PLACES[::2] for offset, due in [(1, 5), (2, 6)])
    scheduler.close(PLACES[0])
    scheduler.release(claimed)  # what was claimed of a closed one does not come back
    assert {each.tp for each in scheduler.claim(10, 10)} == {PLACES[2]}


@pytest.mark.interop
@pytest.mark.parametrize("seed", range(3))
def test_redis_agrees_with_a_dictionary(redis_server: RedisServer, seed: int) -> None:
    scheduler = RedisScheduler(redis_server.url, f"model-{seed}")
    against_model(scheduler, seed, 150)
    scheduler.close_all()


@pytest.mark.interop
def test_redis_knows_a_partition_again_whose_generation_was_committed(redis_server: RedisServer) -> None:
    first = RedisScheduler(redis_server.url, "again")
    assert first.open(PLACES[0], 10, "") is None
    first.add(PLACES[0], [(10, 100), (12, 50), (13, 70)], 15)
    assert first.claim(60, 10) == [Ref(50, PLACES[0], 12)]
    generation = first.generation(PLACES[0])
    second = RedisScheduler(redis_server.url, "again")
    found = second.open(PLACES[0], 10, generation)
    assert found is not None
    assert (found.position, sorted(found.waiting)) == (15, [10, 12, 13]), "what was claimed is due again"
    assert [each.offset for each in second.claim(80, 10)] == [12, 13]
    with pytest.raises(SchedulerLostError, match="another service"):
        first.done([Ref(50, PLACES[0], 12)])
    for each in (first, second):
        each.close_all()


@pytest.mark.interop
def test_redis_is_not_believed_when_its_state_belongs_to_other_positions(redis_server: RedisServer) -> None:
    scheduler = RedisScheduler(redis_server.url, "other")
    scheduler.open(PLACES[0], 0, "")
    scheduler.add(PLACES[0], [(0, 5)], 1)
    generation = scheduler.generation(PLACES[0])
    assert scheduler.open(PLACES[0], 0, "of another time") is None
    assert scheduler.open(PLACES[0], 0, generation) is None, "the state was thrown away meanwhile"
    assert scheduler.claim(10, 10) == []
    scheduler.close_all()


@pytest.mark.interop
@pytest.mark.parametrize("harm", ["flushall", "del due", "zrem", "older"])
def test_a_loss_in_redis_is_noticed_at_the_next_call(redis_server: RedisServer, harm: str) -> None:
    scheduler = RedisScheduler(redis_server.url, f"harm-{harm.replace(' ', '-')}")
    tp = PLACES[0]
    scheduler.open(tp, 0, "")
    scheduler.add(tp, [(0, 5), (1, 6)], 2)
    tag = f"{{harm-{harm.replace(' ', '-')}:{tp.topic}:{tp.partition}}}"
    redis = redis_server.client()
    if harm == "flushall":
        redis.flushall()
    elif harm == "del due":
        redis.delete(f"{tag}:due")
    elif harm == "zrem":
        redis.zrem(f"{tag}:due", "1")
    else:
        redis.hincrby(f"{tag}:meta", "seq", -1)
    redis.close()
    with pytest.raises(SchedulerLostError):
        scheduler.claim(10, 10)
    scheduler.close_all()


@pytest.mark.interop
def test_a_claim_whose_lease_is_over_is_due_again(redis_server: RedisServer) -> None:
    scheduler = RedisScheduler(redis_server.url, "lease", lease_ms=0)
    scheduler.open(PLACES[0], 0, "")
    scheduler.add(PLACES[0], [(0, 5)], 1)
    assert [each.offset for each in scheduler.claim(10, 10)] == [0]
    assert [each.offset for each in scheduler.claim(10, 10)] == [0]
    scheduler.close_all()


def test_the_error_about_an_unreachable_redis_hides_its_password() -> None:
    scheduler = RedisScheduler("redis://:secret@127.0.0.1:1/0")
    with pytest.raises(SchedulerError, match=r"redis://127\.0\.0\.1:1/0 does not answer") as caught:
        scheduler.open(PLACES[0], 0, "")
    assert "secret" not in str(caught.value)
    scheduler.close_all()
