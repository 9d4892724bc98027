"""Attempts at one claim fence each other; their pauses let each of them through, however long a claim takes.

A model of the broker: a claim succeeds if no other one begins before its end.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

import pytest

from ottla.spark.sink.claim_pauses import TRIES, longest_pause_s


def most_tries(claim_s: float, claimants: int, longest_s: Callable[[int], float], seed: int) -> int:
    """The tries of the claimant that needs the most of them; TRIES if one does not get through."""
    random, last_begun, tries = Random(seed), -1, [0] * claimants
    coming = [(random.random() * claim_s, number, False) for number in range(claimants)]
    heapq.heapify(coming)
    while coming:
        now, number, is_end = heapq.heappop(coming)
        if not is_end:
            last_begun, tries[number] = number, tries[number] + 1
            heapq.heappush(coming, (now + claim_s, number, True))
        elif last_begun != number:
            if tries[number] == TRIES:
                return TRIES
            heapq.heappush(coming, (now + random.random() * longest_s(tries[number] - 1), number, False))
    return max(tries)


@pytest.mark.parametrize("claim_s", [0.002, 0.05, 0.5])
def test_eight_attempts_get_through(claim_s: float) -> None:
    assert all(most_tries(claim_s, 8, longest_pause_s, seed) < TRIES for seed in range(100))


def test_pauses_that_do_not_grow_are_too_short_where_a_claim_takes_long() -> None:
    assert all(most_tries(0.2, 8, lambda _: longest_pause_s(0), seed) == TRIES for seed in range(20))
