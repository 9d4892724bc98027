"""Captured groups: the same as those of a backtracking engine, in linear time.

Zone: pure. Python's `re` is the independent engine: it prefers branches in the same order as Java's.
"""

from __future__ import annotations

import random
import re

import pytest

from ottla.linear_regex import PatternError, TooCostly
from ottla.security.capturing_regex import CapturingPattern

PIECES = [
    "a",
    "b",
    ".",
    "[ab]",
    "[^a]",
    "(a)",
    "(b|a)",
    "(a|ab)",
    "(?:ab|a)",
    "(a*)",
    "(b+?)",
    "^",
    "$",
    "(.*?)",
    "(a?)",
]
REPEATS = ["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?"]


def random_pattern(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randrange(1, 5)):
        piece = rng.choice(PIECES)
        # A repeat of something that may be empty: engines differ in what its group holds.
        empty = piece in "^$" or piece in ("(a*)", "(.*?)", "(a?)")
        parts.append(piece if empty else piece + rng.choice(REPEATS))
    text = "".join(parts)
    return f"({text})" if rng.random() < 0.2 else text


def test_groups_are_those_of_a_backtracking_engine() -> None:
    rng = random.Random(5)
    matched = 0
    for _ in range(1_500):
        text = random_pattern(rng)
        ours, theirs = CapturingPattern(text), re.compile(text)
        assert ours.groups == theirs.groups
        subject = "".join(rng.choice("abc") for _ in range(rng.randrange(8)))
        whole = theirs.fullmatch(subject)
        assert ours.matches_text(subject) is (whole is not None), (text, subject)
        matched += whole is not None
        numbers = range(ours.groups + 1)
        replacement: list[str | int] = [each for number in numbers for each in ("<", number, ">")]
        assert ours.replace_matches(subject, tuple(replacement)) == java_replace_all(theirs, subject), (text, subject)
    assert matched > 250


def java_replace_all(pattern: re.Pattern[str], subject: str) -> str:
    """Java's loop: after an empty match the search continues one character later."""
    parts, copied, at = [], 0, 0
    while at <= len(subject):
        # Python's `^` means the position, if one is given to `search`, only at 0, as Java's.
        found = pattern.search(subject, at)
        if found is None:
            break
        parts += [subject[copied : found.start()], *(f"<{each or ''}>" for each in (found[0], *found.groups()))]
        copied = found.end()
        at = found.end() + (found.start() == found.end())
    return "".join(parts) + subject[copied:]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("(a*)*b", "a" * 2_000), ("(a|a)*b", "a" * 2_000), ("(a?){30}a{30}b", "a" * 500), ("(.*)(.*)(.*)x", "y" * 1_000)],
)
def test_patterns_that_take_a_backtracking_engine_for_ever(pattern: str, text: str) -> None:
    try:
        assert not CapturingPattern(pattern).matches_text(text)
    except TooCostly:
        assert len(text) * len(pattern) > 5_000


@pytest.mark.parametrize("pattern", ["(", ")", "a**", "(?=a)", "(a)\\1", "[", "x" * 1_001, "(a{500}){500}"])
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        CapturingPattern(pattern)
