"""What must hold of compacted topics.

Zone: pure. What holds of a cluster holds of the other topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.sim import checkers
from ottla.sim.cluster.checkers import CHECKERS as OF_CLUSTERS
from ottla.sim.compaction.history import CompactionHistory, unpacked
from ottla.sim.history import Outcome

Values = dict[bytes, list[bytes | None]]


def latest_is_shown(history: CompactionHistory) -> Iterator[str]:
    """At the end every replica shows the last value of each key, and no key that was deleted."""
    for log in history.compacted:
        if log in history.excused:
            continue
        allowed = _allowed(history, log)
        for (of, broker), found in history.shown.items():
            if of == log:
                yield from _wrong(log, broker, found, allowed)


def _wrong(log: str, broker: int, found: dict[bytes, bytes | None], allowed: Values) -> Iterator[str]:
    for key in sorted({*found, *allowed}):
        value, wanted = found.get(key), allowed.get(key, [None])
        if value in wanted:
            continue
        if wanted == [None]:
            yield f"{log}: broker {broker} shows {value!r} of the deleted key {key.decode()}"
        else:
            yield f"{log}: broker {broker} shows {value!r} of the key {key.decode()}, the last was {wanted[0]!r}"


def _allowed(history: CompactionHistory, log: str) -> Values:
    """Key → what may be shown: the last acknowledged value first, then those of which nobody knows.

    A key is one producer's, and its batches of one partition are written in the order in which they were made.
    """
    last: Values = {}
    unsure: Values = {}
    for write in history.writes:
        if write.log != log or write.outcome is Outcome.FAIL:
            continue
        for text in write.values:
            key, value = unpacked(text)
            if write.outcome is Outcome.OK:
                last[key] = [value]
            else:
                unsure.setdefault(key, []).append(value)
    for key, values in unsure.items():
        last.setdefault(key, [None]).extend(values)
    return last


CHECKERS: Final = (*OF_CLUSTERS, latest_is_shown)


def violations(history: CompactionHistory, at_most: int = 5) -> list[tuple[str, str]]:
    """What is wrong with a history: (property, sentence), at most so many per property."""
    return checkers.wrong_with(history, CHECKERS, at_most)
