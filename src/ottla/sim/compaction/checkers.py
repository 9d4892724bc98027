"""What must hold of compacted topics.

Zone: pure. What holds of a cluster holds of the other topic.
"""

from __future__ import annotations

from typing import Final

from ottla.sim import checkers
from ottla.sim.cluster.checkers import CHECKERS as OF_CLUSTERS
from ottla.sim.cluster.history import ClusterHistory

CHECKERS: Final = (*OF_CLUSTERS, checkers.latest_is_shown)


def violations(history: ClusterHistory, at_most: int = 5) -> list[tuple[str, str]]:
    """What is wrong with a history: (property, sentence), at most so many per property."""
    return checkers.wrong_with(history, CHECKERS, at_most)
