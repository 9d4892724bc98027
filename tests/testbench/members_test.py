"""What is said of a group whose members have reported."""

from __future__ import annotations

from testbench.members import owned_twice


def test_each_partition_has_one_owner_in_a_generation() -> None:
    one = [["owns", [0, 1], 1], ["read", 0, 0, "x"], ["owns", [], -1], ["owns", [0], 2]]
    two = [["owns", [], -1], ["owns", [1], 2], ["left"]]
    assert not owned_twice({"one": one, "two": two}), "what somebody else had in another generation does not matter"
    assert owned_twice({"one": one, "two": [*two, ["owns", [0], 2]]}) == ["generation 2, partition 0: ['one', 'two']"]


def test_partitions_in_no_generation_are_told() -> None:
    assert owned_twice({"one": [["owns", [3], -1]]}) == ["generation -1, partition 3: ['one']"]
