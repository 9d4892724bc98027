"""Where a follower cuts: a table."""

from __future__ import annotations

import pytest

from ottla.replication.follower.truncation import TruncationPoint, where_to_cut
from ottla.storage.indexes.leader_epochs import LeaderEpochs

END, MARK = 100, 60
OWN = ((1, 0), (3, 40), (5, 80))
"""The follower: epoch 1 from 0 on, 3 from 40 on, 5 from 80 on."""


@pytest.mark.parametrize(
    ("leader", "cut"),
    [
        ((5, 90), TruncationPoint(90, True)),  # the leader's epoch 5 is shorter
        ((5, 120), TruncationPoint(100, True)),  # longer: nothing goes
        ((3, 70), TruncationPoint(70, True)),  # the leader has no epoch 5, and less of 3
        ((3, 95), TruncationPoint(80, True)),  # more of 3 than the follower: its own epoch 5 goes
        (
            (4, 85),
            TruncationPoint(80, False),
        ),  # an epoch that the follower never saw: down to the one below, and compare again
        ((2, 50), TruncationPoint(40, False)),
        ((1, 40), TruncationPoint(40, True)),
        ((0, 10), TruncationPoint(0, True)),  # before everything the follower has: nothing is common
        ((-1, 70), TruncationPoint(70, True)),  # a leader of the first protocol names no epoch
        ((-1, -1), TruncationPoint(60, True)),  # a leader that knows nothing: the high watermark
    ],
    ids=str,
)
def test_where_to_cut(leader: tuple[int, int], cut: TruncationPoint) -> None:
    epochs = LeaderEpochs(OWN, lambda: END, lambda _: None)
    assert where_to_cut(*leader, epochs.end_offset_for, END, MARK) == cut


def test_a_follower_without_epochs_believes_the_leader() -> None:
    epochs = LeaderEpochs((), lambda: END, lambda _: None)
    assert where_to_cut(3, 70, epochs.end_offset_for, END, MARK) == TruncationPoint(70, True)


def test_truncation_is_never_above_the_log_end() -> None:
    epochs = LeaderEpochs(OWN, lambda: END, lambda _: None)
    assert where_to_cut(-1, -1, epochs.end_offset_for, END, END + 5) == TruncationPoint(END, True)
