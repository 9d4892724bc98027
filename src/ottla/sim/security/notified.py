"""When a broker has certainly heard of a change in the metadata store.

Zone: deterministic. A change reaches a broker within HEARD_NS, as long as the broker runs, has a session, is heard by a
server of the store, and all servers keep up. Each time that this was so without a break is noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.sim.cluster.node import ClusterNode
from ottla.sim.machines.ensemble import Ensemble
from ottla.sim.world import MS, SECOND, Timeline

HEARD_NS: Final = 4 * SECOND
"""A notification, the request for its content, and that for the ACLs that it names, with lost packets."""
LOOK_NS: Final = 100 * MS
SILENCE_NS: Final = SECOND
"""The store is heard more often than that."""


@dataclass(slots=True)
class Span:
    """A time without a break."""

    begin_ns: int
    end_ns: int
    session: int


@dataclass(slots=True)
class Notified:
    """The times in which brokers hear of changes, by broker and life."""

    spans: dict[tuple[int, int], list[Span]] = field(default_factory=dict)

    def settled_ns(self, broker: int, life: int, changed_ns: int) -> int | None:
        """When that life of the broker has heard of a change that was made before that time; None: never."""
        for span in self.spans.get((broker, life), ()):
            heard_ns = max(span.begin_ns, changed_ns) + HEARD_NS
            if heard_ns <= span.end_ns:
                return heard_ns
        return None

    def note_span(self, broker: int, life: int, session: int, now_ns: int) -> None:
        """The broker hears of changes now; without a break if it did so in the look before."""
        spans = self.spans.setdefault((broker, life), [])
        if spans and spans[-1].session == session and now_ns - spans[-1].end_ns <= LOOK_NS:
            spans[-1].end_ns = now_ns
        else:
            spans.append(Span(now_ns, now_ns, session))


class Watch:
    """Looks at all brokers and at the store, again and again."""

    def __init__(
        self, timeline: Timeline, ensemble: Ensemble, nodes: Sequence[ClusterNode], notified: Notified
    ) -> None:
        self._timeline = timeline
        self._ensemble = ensemble
        self._nodes = nodes
        self._notified = notified
        self._zxid = 0
        """The last change of the store in the look before."""

    def start_looking(self) -> None:
        """Look now, and from now on."""
        ensemble, now_ns = self._ensemble, self._timeline.now_ns
        is_late = max(ensemble.slow_until_ns, ensemble.down_until_ns) > now_ns
        if not is_late and all(server.zxid >= self._zxid for server in ensemble.servers):
            for node in self._nodes:
                self._look_at(node, now_ns)
        self._zxid = ensemble.zxid
        self._timeline.schedule_after(LOOK_NS, "watch", self.start_looking)

    def _look_at(self, node: ClusterNode, now_ns: int) -> None:
        process, store = node.machine.process, node.store
        if process is None or store is None or process.is_paused or not store.is_served(SILENCE_NS):
            return
        self._notified.note_span(node.number, process.life, store.session_id, now_ns)
