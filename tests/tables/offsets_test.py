"""Offsets as text, and against a topic."""

from __future__ import annotations

import pytest

from ottla.tables.errors import CommitConflict, OffsetsLostError, OffsetsOutsideTopicError, TopicRecreatedError
from ottla.tables.offsets import TableOffsets, check_offsets, decode_offsets
from ottla.tables.writers import commit_rows

SAVED = TableOffsets("ab", {0: 5, 1: 7})


def test_text_and_back() -> None:
    assert decode_offsets(SAVED.encode_text(), "t") == SAVED


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '"x"', '{"topic_id":"a"}', '{"topic_id":"a","next_offsets":{"x":1}}', "[" * 100_000]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(OffsetsLostError, match="cannot be read"):
        decode_offsets(text, "t")


def test_offsets_must_lie_in_the_topic() -> None:
    check_offsets("t", SAVED, "ab", {0: (0, 5), 1: (7, 9), 2: (0, 1)})
    with pytest.raises(TopicRecreatedError):
        check_offsets("t", SAVED, "cd", {0: (0, 5), 1: (7, 9)})
    with pytest.raises(OffsetsOutsideTopicError, match="lost records"):
        check_offsets("t", SAVED, "ab", {0: (0, 4), 1: (7, 9)})
    with pytest.raises(OffsetsOutsideTopicError, match="deleted 1 offsets"):
        check_offsets("t", SAVED, "ab", {0: (6, 9), 1: (7, 9)})
    with pytest.raises(OffsetsOutsideTopicError, match="partition 1"):
        check_offsets("t", SAVED, "ab", {0: (0, 9)})


class LateAnswer:
    """A table whose first commits end with an error: `lands`: although they took effect."""

    name = "t"

    def __init__(self, *, lands: bool, failures: int = 1) -> None:
        self.offsets: TableOffsets | None = None
        self.lands, self.failures, self.appended = lands, failures, 0

    def read_offsets(self) -> TableOffsets | None:
        return self.offsets

    def append_rows(self, rows: object, before: TableOffsets, after: TableOffsets) -> None:
        self.failures -= 1
        if self.failures < 0 or self.lands:
            self.appended += 1
            self.offsets = after
        if self.failures >= 0:
            raise CommitConflict("t changed")

    def close(self) -> None: ...


@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_of_unknown_outcome_takes_effect_once(lands: bool) -> None:
    table = LateAnswer(lands=lands)
    commit_rows(table, None, None, SAVED, SAVED)
    assert table.appended == 1


def test_a_commit_that_always_conflicts_ends_with_the_conflict() -> None:
    with pytest.raises(CommitConflict):
        commit_rows(LateAnswer(lands=False, failures=99), None, None, SAVED, SAVED)
