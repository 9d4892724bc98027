"""Redrives and purges of one topic: the one that began last counts, and an earlier one settles nothing more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.retry.moving import Readers

from ottla.client import Producer
from ottla.retry import RetryError
from ottla.retry.dead_letters import DeadLetter, DeadLetters
from ottla.retry.headers import Origin, Trail, with_trail

pytestmark = pytest.mark.slow
VALUES = [b"a", b"b", b"c"]


@pytest.fixture
def dead(broker: str, topic: str) -> Iterator[tuple[DeadLetters, DeadLetters]]:
    """Three letters, and two who look at them."""
    with Producer({"bootstrap.servers": broker}) as producer:
        for offset, value in enumerate(VALUES):
            trail = Trail(attempts=2, origin=Origin(topic, 0, offset))
            producer.send(f"{topic}.dead", value, headers=with_trail((), trail), partition=0)
    settings: dict[str, str | int | bool] = {"bootstrap.servers": broker}
    with DeadLetters(settings, f"{topic}.dead") as first, DeadLetters(settings, f"{topic}.dead") as second:
        yield first, second


def test_a_redrive_that_another_one_overtakes_sends_no_letter_twice(
    broker: str, topic: str, dead: tuple[DeadLetters, DeadLetters]
) -> None:
    first, second = dead

    def overtaken(letter: DeadLetter) -> bool:
        if letter.record.value == VALUES[0]:
            assert second.redrive().total == 3
        return True

    with pytest.raises(RetryError, match=r"another redrive or purge of .* has begun"):
        first.redrive(overtaken)
    with Readers(broker, topic) as readers:
        assert readers.look(0.5) == VALUES
    assert list(first.letters()) == []


def test_a_purge_that_a_redrive_overtakes_makes_no_letter_open_again(
    broker: str, topic: str, dead: tuple[DeadLetters, DeadLetters]
) -> None:
    first, second = dead
    with pytest.raises(RetryError, match=r"another redrive or purge of .* has begun"):
        first.purge(lambda letter: letter.record.value == VALUES[0], before=lambda _count: second.redrive())
    assert second.redrive().total == 0
    with Readers(broker, topic) as readers:
        assert readers.look(0.5) == VALUES
    assert len(list(first.letters(settled=True))) == 3, "nothing was deleted from the log"


def test_a_purge_throws_away_what_is_left_and_leaves_no_letter_open(dead: tuple[DeadLetters, DeadLetters]) -> None:
    first, second = dead
    assert first.purge(lambda letter: letter.record.value == VALUES[1]) == 1
    assert [each.record.value for each in second.letters()] == [VALUES[0], VALUES[2]]
    assert second.purge() == 2
    assert list(first.letters(settled=True)) == []
