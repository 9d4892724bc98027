"""Names that occur more than once, found without storing all names.

Zone: pure.
"""

from __future__ import annotations

from ottla.broker.duplicate_names import DuplicateNames


def find(*groups):
    repeats = DuplicateNames()
    assert [repeats.add_names(group) for group in groups] == [len(group) for group in groups]
    steps = repeats.find_repeated()
    costs = set()
    while True:
        try:
            costs.add(next(steps))
        except StopIteration as stop:
            assert len(costs) == 1, "whatever the hashes are"
            return stop.value


def test_a_name_in_two_groups_is_repeated():
    assert find(["a", "b"], ["c", "b"], ["d"]) == {hash("b")}


def test_names_may_be_tuples():
    assert find([("t", 1), ("t", 2)], [("u", 1), ("t", 1)]) == {hash(("t", 1))}


def test_each_is_found_once_among_thousands():
    names = [f"name-{number}" for number in range(5_000)]
    assert find(names) == set()
    assert find(names, names[100:200], names[150:160]) == {hash(name) for name in names[100:200]}


def test_no_names_have_no_repetition():
    assert find() == set()
