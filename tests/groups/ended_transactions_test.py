"""The end of a transaction with thousands of offsets: it takes effect at once, and is carried out in slices.

Zone: pure.
"""

from __future__ import annotations

from random import Random

import pytest
from tests.groups.hall import Hall
from tests.steps import count_steps

from ottla.coordinator.shard import VOLATILE, EntryOrigin, TransactionEnd
from ottla.coordinator.shard_runtime import STEPS_PER_TURN
from ottla.groups.commands import FetchOffsets
from ottla.groups.commits import AllFoundOffsets, fetch_offsets
from ottla.groups.offsets import SLICE, Offsets
from ottla.groups.records import OffsetCommitted, Position

MANY = 3_000
TURN_STEPS = 300_000
"""The most instructions of a turn: some milliseconds."""
PRODUCER = 7


def write(offsets: Offsets, producer_id: int, number: int, offset: int, at: int, group: str = "g") -> None:
    offsets.apply_commit(OffsetCommitted(group, "t", number, Position(offset)), at, producer_id)


def written() -> Offsets:
    """Pending offsets of an open transaction, over committed ones."""
    offsets = Offsets()
    for number in range(MANY):
        write(offsets, -1, number, 1, number)
    for number in range(MANY):
        write(offsets, PRODUCER, number, 2, MANY + number)
    return offsets


def stable(offsets: Offsets) -> dict[int, int]:
    """The result of OffsetFetch with require_stable, by partition; an offset that is not stable is -2."""
    return {
        each.partition: each.position.offset if each.position else -2 for each in AllFoundOffsets(offsets, "g", True)
    }


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_with_many_offsets_takes_effect_at_once_and_is_carried_out_in_slices(commit: bool) -> None:
    offsets = written()
    assert set(stable(offsets).values()) == {-2}
    assert count_steps(lambda: offsets.end_transaction(PRODUCER, commit)) < TURN_STEPS / STEPS_PER_TURN
    expected = dict.fromkeys(range(MANY), 2 if commit else 1)
    slices = 0
    while offsets.is_ending:
        assert stable(offsets) == expected
        assert not any(offsets.is_open("g", ("t", number)) for number in range(0, MANY, 50))
        slices += 1
        assert count_steps(offsets.carry_out) < TURN_STEPS / STEPS_PER_TURN
    assert slices == MANY // SLICE
    assert stable(offsets) == expected
    assert offsets.count == MANY
    assert offsets.has_any("g")
    assert not list(offsets.open_of_group("g"))


def test_commits_during_carrying_out_are_later_than_the_end() -> None:
    offsets = written()
    offsets.end_transaction(PRODUCER, True)
    last = MANY - 1
    write(offsets, -1, last, 3, 3 * MANY)
    write(offsets, PRODUCER, last - 1, 4, 3 * MANY + 1)  # its next transaction
    offsets.apply_commit(OffsetCommitted("g", "t", last - 2, None), 3 * MANY + 2, -1)
    while offsets.is_ending:
        assert offsets.is_open("g", ("t", last - 1))
        assert stable(offsets)[last - 1] == -2
        offsets.carry_out()
    assert (stable(offsets)[last], stable(offsets)[last - 1], stable(offsets)[0]) == (3, -2, 2)
    assert offsets.get_offset("g", ("t", last - 2)) is None
    offsets.end_transaction(PRODUCER, True)
    assert stable(offsets)[last - 1] == 4


def test_a_group_deleted_during_carrying_out_does_not_come_back() -> None:
    offsets = written()
    offsets.end_transaction(PRODUCER, True)
    offsets.forget_group("g")
    while offsets.is_ending:
        offsets.carry_out()
    assert not offsets.has_any("g")
    assert offsets.count == 0


def seen(offsets: Offsets) -> object:
    """The results of all queries."""
    found = {}
    for group in ("g", "h"):
        places = [("t", number) for number in range(400)]
        found[group] = (
            dict(offsets.of_group(group)),
            [(offsets.get_offset(group, place), offsets.is_open(group, place)) for place in places],
            set(offsets.open_of_group(group)),
            offsets.count_of(group),
            set(offsets.in_topics(group, frozenset("t"))),
        )
    return found


@pytest.mark.parametrize("seed", range(3))
def test_queries_do_not_depend_on_carrying_out(seed: int) -> None:
    draw, lazy, eager = Random(seed), Offsets(), Offsets()
    for at in range(0, 20_000, 1_000):
        producer, group = draw.choice((-1, 7, 8)), draw.choice("gh")
        for number in draw.sample(range(400), draw.choice((5, 300))):
            for each in (lazy, eager):
                write(each, producer, number, at + number, at + number, group)
        match draw.randrange(6):
            case 0 | 1 | 2:
                ended, commit = draw.choice((7, 8)), draw.random() < 0.7
                for each in (lazy, eager):
                    each.end_transaction(ended, commit)
            case 3:
                for each in (lazy, eager):
                    each.apply_commit(OffsetCommitted(group, "t", number, None), at + 999, -1)
            case 4:
                for each in (lazy, eager):
                    each.forget_group(group)
            case _ if lazy.is_ending:
                lazy.carry_out()
        while eager.is_ending:
            eager.carry_out()
        assert seen(lazy) == seen(eager)


def test_a_shard_carries_an_end_out_in_turns_of_its_own() -> None:
    hall = Hall()
    for number in range(MANY):
        hall.shard.apply(OffsetCommitted("g", "t", number, Position(1)), EntryOrigin(number, PRODUCER, 0))
    hall.shard.apply(TransactionEnd(PRODUCER, 0, True), EntryOrigin(MANY, PRODUCER, 0))
    turns = 0
    while hall.shard.next_deadline() == 0:
        for event in hall.shard.on_time(hall.now).volatile:
            hall.shard.apply(event, VOLATILE)
        turns += 1
    assert turns == MANY // SLICE
    answers: list[object] = []
    (effect,) = fetch_offsets(
        hall.shard.offsets, FetchOffsets(answers.append, "g", [("t", range(MANY))], True)
    ).committed
    effect.perform_effect()
    assert {each.position.offset for each in answers[0]} == {1}  # type: ignore[attr-defined]
