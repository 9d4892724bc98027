"""A mapping that never changes: versions made from one another, compared with copies of dicts.

Zone: pure.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.immutable_map import ImmutableMap

KEYS = st.integers(0, 60)
CHANGES = st.lists(
    st.one_of(st.dictionaries(KEYS, st.integers(), max_size=40), st.lists(KEYS, max_size=20)), max_size=40
)


@given(st.dictionaries(KEYS, st.integers()), CHANGES)
def test_every_version_stays_what_it_was(first: dict[int, int], changes: list[dict[int, int] | list[int]]) -> None:
    made = [(ImmutableMap(first), dict(first))]
    for change in changes:
        before, copy = made[-1]
        if isinstance(change, dict):
            made.append((before.updated(change), {**copy, **change}))
        else:
            made.append((before.removed(change), {key: value for key, value in copy.items() if key not in change}))
    for version, expected in made:
        assert len(version) == len(expected)
        for key in range(61):
            assert (key in version) == (key in expected)
            assert version.get(key) == expected.get(key)
            assert version.get(key, "none") == expected.get(key, "none")
    for version, expected in made:
        assert dict(version.items()) == expected
        assert set(version) == set(version.keys()) == set(expected)
        assert sorted(version.values()) == sorted(expected.values())
        assert version == expected


def test_a_missing_key_is_an_error() -> None:
    some = ImmutableMap({1: "a", 2: "b"}).removed([2])
    assert some[1] == "a"
    for key in (2, 3):
        with pytest.raises(KeyError):
            some[key]


def test_one_change_beside_many_copies_few_entries() -> None:
    some = ImmutableMap({each: each for each in range(10_000)})
    joined = 0
    for each in range(1_000):
        before = some._base
        some = some.updated({each: -1}).removed([each + 5_000])
        joined += some._base is not before
        assert len(some._changes) < 150
    assert joined < 20
    assert len(some) == 9_000
