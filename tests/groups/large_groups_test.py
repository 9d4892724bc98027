"""What a request costs in a group of many members, counted in walks over the members.

Zone: real.
"""

from __future__ import annotations

from tests.groups.hall import Hall, error, joined


class CountedMembers(dict):
    """Members that count how often somebody walks over them."""

    walks = 0

    def values(self):
        CountedMembers.walks += 1
        return super().values()

    def copy(self):
        return CountedMembers(self)


def test_one_that_joins_does_not_walk_over_the_others():
    hall = Hall()
    leader, other = hall.stable("a", "b")
    hall.joins("c")
    assert hall.state == "PreparingRebalance"
    hall.group.members = CountedMembers(hall.group.members)
    CountedMembers.walks = 0
    assert not hall.joins("a", leader, protocols=(("range", b"other"),)).answered
    for number in range(5):
        assert not hall.joins(f"more{number}", protocols=(("range", b""), ("new", b""))).answered
    assert error(hall.joins("other", protocols=(("new", b""),))) == "INCONSISTENT_GROUP_PROTOCOL"
    assert CountedMembers.walks == 0
    joined(hall.joins("b", other))
    assert CountedMembers.walks > 0, "the end of a rebalance does"
