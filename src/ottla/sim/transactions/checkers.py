"""What must hold for every history of transactions and groups, one function per property.

Zone: pure. End-to-end: only answers that clients got. G0, G1a, G1b, G1c are Adya's anomalies, as Jepsen names them for
Kafka. The properties of a cluster (`ottla.sim.cluster.checkers`) judge the input of the copiers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

from ottla.sim.checkers import check_properties
from ottla.sim.cluster import checkers as cluster
from ottla.sim.transactions.history import Fate, SeenMarker, SeenRecord, TransactionHistory, Txn

# Cycles in a graph: Tarjan's strongly connected components, without recursion.

N = TypeVar("N")


def find_cycles(edges: Mapping[N, Sequence[N]]) -> Iterator[list[N]]:
    """Sets of two or more nodes that can all reach each other. Every node is a key of `edges`."""
    search = _Search(edges)
    for node in edges:
        if node not in search.index:
            yield from search.walk_from(node)


class _Search(Generic[N]):
    def __init__(self, edges: Mapping[N, Sequence[N]]) -> None:
        self._edges = edges
        self.index: dict[N, int] = {}
        self._low: dict[N, int] = {}
        self._stack: dict[N, None] = {}

    def _enter_node(self, node: N) -> tuple[N, Iterator[N]]:
        self.index[node] = self._low[node] = len(self.index)
        self._stack[node] = None
        return node, iter(self._edges[node])

    def walk_from(self, root: N) -> Iterator[list[N]]:
        """Components that can be reached from a node, with two or more members."""
        path = [self._enter_node(root)]
        while path:
            node, targets = path[-1]
            for target in targets:
                if target not in self.index:
                    path.append(self._enter_node(target))
                    break
                if target in self._stack:
                    self._low[node] = min(self._low[node], self.index[target])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    self._low[above] = min(self._low[above], self._low[node])
                if self._low[node] == self.index[node]:
                    component = self._pop_component(node)
                    if len(component) > 1:
                        yield component

    def _pop_component(self, node: N) -> list[N]:
        component = []
        while True:
            member, _ = self._stack.popitem()
            component.append(member)
            if member == node:
                return component[::-1]


# ---- what was committed ----------------------------------------------------------------------------------------------


def _writers_by_value(history: TransactionHistory) -> dict[bytes, Txn]:
    return {value: txn for txn in history.txns for value in txn.values}


def _visible_values(history: TransactionHistory) -> set[bytes]:
    """Values that a read_committed reader gets at the end."""
    return {value for found in history.last_committed.values() for value in found.values()}


def _committed_txns(history: TransactionHistory) -> list[Txn]:
    """Transactions with an acknowledged commit, and those with a visible value."""
    visible = _visible_values(history)
    return [txn for txn in history.txns if txn.fate is Fate.COMMITTED or any(value in visible for value in txn.values)]


def _value_places(history: TransactionHistory) -> dict[bytes, tuple[str, int]]:
    """Log and offset of each value at the end, visible or not."""
    return {
        seen.value: (log, seen.offset)
        for log, found in history.last_raw.items()
        for seen in found
        if isinstance(seen, SeenRecord)
    }


def _by_log(txn: Txn, places: dict[bytes, tuple[str, int]]) -> dict[str, list[int]]:
    """Offsets of a transaction's values in each log."""
    found: dict[str, list[int]] = {}
    for value in txn.values:
        if value in places:
            found.setdefault(places[value][0], []).append(places[value][1])
    return found


# ---- Adya ------------------------------------------------------------------------------------------------------------


def no_dirty_write(history: TransactionHistory) -> Iterator[str]:
    """G0: in every log the transactions of one transactional id follow each other without overlap, in order."""
    places = _value_places(history)
    last: dict[tuple[str, str], tuple[int, Txn]] = {}
    for txn in _committed_txns(history):
        for log, offsets in _by_log(txn, places).items():
            end, before = last.get((txn.transactional_id, log), (-1, txn))
            if min(offsets) < end:
                yield f"{log}: {txn.name} at {min(offsets)} before {before.name} of the same id, which ends at {end}"
            last[txn.transactional_id, log] = max(offsets), txn


def no_aborted_read(history: TransactionHistory) -> Iterator[str]:
    """G1a: read_committed shows no value of an aborted transaction, nor of one before its commit was requested."""
    writers = _writers_by_value(history)
    for view in history.views:
        if not view.committed:
            continue
        for seen in view.records:
            txn = writers.get(seen.value)
            if txn is None:
                yield f"{view.reader} read {view.log} at {seen.offset}: no producer wrote {seen.value[:40]!r}"
            elif txn.fate is Fate.ABORTED:
                yield f"{view.reader} read {view.log} at {seen.offset}: {txn.name} was aborted"
            elif not 0 <= txn.commit_sent_ns <= view.at_ns:
                yield f"{view.reader} read {view.log} at {seen.offset}: {txn.name} had not requested its commit"
    for txn in history.txns:
        for value in txn.read:
            if value in writers and writers[value].fate is Fate.ABORTED:
                yield f"{txn.name} read {value!r} of {writers[value].name}, which was aborted"


def no_intermediate_read(history: TransactionHistory) -> Iterator[str]:
    """G1b: when a value of a transaction is shown, its marker in that log is below the high watermark.

    The last stable offset may still be below the rest of its values, if another transaction began in between.
    """
    ends = {log: {offset: end for offset, end, _ in _resolve_markers(found)} for log, found in history.last_raw.items()}
    for view in history.views:
        for seen in view.records if view.committed else ():
            end = ends.get(view.log, {}).get(seen.offset, -1)
            if end >= view.high_watermark:
                yield f"{view.log} at {seen.offset} shown below {view.high_watermark}, its transaction ends at {end}"
                break


def no_circular_flow(history: TransactionHistory) -> Iterator[str]:
    """G1c: no cycle of committed transactions, each of which read from the one before or followed it in its client."""
    writers = _writers_by_value(history)
    nodes = _committed_txns(history)
    known = {txn.name for txn in nodes}
    edges: dict[str, list[str]] = {txn.name: [] for txn in nodes}
    last: dict[str, str] = {}
    # An edge from A to B: B began after A in the same client, or B read a value of A before B ended.
    for txn in nodes:
        if txn.client in last:
            edges[last[txn.client]].append(txn.name)
        last[txn.client] = txn.name
        for value in txn.read:
            writer = writers.get(value)
            if writer is not None and writer.name in known and writer is not txn:
                edges[writer.name].append(txn.name)
    for ring in find_cycles(edges):
        yield f"a cycle of {len(ring)} transactions: {', '.join(ring[:6])}"


# ---- exactly once ----------------------------------------------------------------------------------------------------


def committed_is_kept(history: TransactionHistory) -> Iterator[str]:
    """Lost: all values of a committed transaction are visible at the end, at their acknowledged offsets."""
    for txn in history.txns:
        if txn.fate is not Fate.COMMITTED:
            continue
        for value, log in txn.values.items():
            found = history.last_committed.get(log, {})
            offset = txn.written.get(value, -1)
            if offset >= 0 and found.get(offset) != value:
                yield f"lost: {log} at {offset} of {txn.name}; there is {found.get(offset)!r}"


def transactions_are_whole(history: TransactionHistory) -> Iterator[str]:
    """Torn: at the end either all values of a transaction are visible, or none."""
    visible = _visible_values(history)
    for txn in history.txns:
        seen = [value for value in txn.values if value in visible]
        if seen and len(seen) < len(txn.values):
            hidden = next(value for value in txn.values if value not in visible)
            yield f"torn: of {txn.name} {seen[0]!r} is visible, {hidden!r} in {txn.values[hidden]} is not"


def copied_once(history: TransactionHistory) -> Iterator[str]:
    """Duplicate, lost: each record below the position of a pipeline has one copy, each one above has none."""
    counts: dict[tuple[str, str, int, int], int] = {}
    for value in [value for found in history.last_committed.values() for value in found.values()]:
        if value in history.copies:
            group, (topic, partition), offset = history.copies[value]
            key = (group, topic, partition, offset)
            counts[key] = counts.get(key, 0) + 1
    pipelines = {copied.pipeline for copied in history.copies.values()}
    for (group, (topic, partition)), end in history.last_positions.items():
        if group in pipelines:
            yield from _check_copies(counts, group, topic, partition, end)


def _check_copies(
    counts: dict[tuple[str, str, int, int], int], group: str, topic: str, partition: int, end: int
) -> Iterator[str]:
    for offset in range(end):
        count = counts.get((group, topic, partition, offset), 0)
        if count != 1:
            yield f"{group} copied {topic}-{partition} at {offset} {count} times"
    for key in counts:
        if key[:3] == (group, topic, partition) and key[3] >= end:
            yield f"{group} copied {topic}-{partition} at {key[3]}, its position is {end}"


# ---- logs ------------------------------------------------------------------------------------------------------------


def views_agree(history: TransactionHistory) -> Iterator[str]:
    """Inconsistent offsets: all answers about an offset of a log agree."""
    seen: dict[tuple[str, int], object] = {}
    for log, offset, what in _observed_facts(history):
        first = seen.setdefault((log, offset), what)
        if first != what:
            yield f"two values: {log} at {offset}: {first!r} and {what!r}"


def _observed_facts(history: TransactionHistory) -> Iterator[tuple[str, int, object]]:
    for view in history.views:
        for seen in view.records:
            yield view.log, seen.offset, seen.value
        for marker in view.markers:
            yield view.log, marker.offset, marker[1:]
    for txn in history.txns:
        for value, offset in txn.written.items():
            if offset >= 0 and txn.fate is Fate.COMMITTED:
                yield txn.values[value], offset, value


def each_value_once(history: TransactionHistory) -> Iterator[str]:
    """Duplicate: a value is at one offset only, visible or not."""
    places: dict[bytes, tuple[str, int]] = {}
    for log, found in history.last_raw.items():
        for seen in found:
            if isinstance(seen, SeenRecord):
                first = places.setdefault(seen.value, (log, seen.offset))
                if first != (log, seen.offset):
                    yield f"twice: {seen.value!r} in {log} at {seen.offset} and in {first[0]} at {first[1]}"


def views_follow_markers(history: TransactionHistory) -> Iterator[str]:
    """read_committed shows exactly the records whose producer's next marker in the log is a commit."""
    truth = {log: _resolve_markers(found) for log, found in history.last_raw.items()}
    offsets = {log: [offset for offset, _, _ in found] for log, found in truth.items()}
    for view in history.views:
        if not view.committed or view.log not in truth or view.damage:
            continue
        begin, end = (bisect_left(offsets[view.log], at) for at in (view.position, view.end))
        expected = [offset for offset, _, commit in truth[view.log][begin:end] if commit]
        shown = [seen.offset for seen in view.records]
        if shown != expected:
            different = sorted(set(shown) ^ set(expected))
            yield f"{view.reader} read {view.log} from {view.position} to {view.end}: wrong about {different[:5]}"


def _resolve_markers(found: list[SeenRecord | SeenMarker]) -> list[tuple[int, int, bool]]:
    """(offset, offset of its marker, whether it is committed) of all records of a log; -1: no marker yet."""
    # Backwards: the marker that ends a record's transaction is the next one of its producer id.
    ends: dict[int, tuple[int, bool]] = {}
    resolved = []
    for seen in reversed(found):
        if isinstance(seen, SeenMarker):
            ends[seen.producer_id] = seen.offset, seen.commit
        else:
            resolved.append((seen.offset, *ends.get(seen.producer_id, (-1, False))))
    return resolved[::-1]


def stable_is_below_watermark(history: TransactionHistory) -> Iterator[str]:
    """Offsets shown with read_committed < last stable offset ≤ high watermark; and bytes are correct."""
    for view in history.views:
        if view.damage:
            yield f"{view.reader} read {view.log} at {view.position}: {view.damage}"
        if view.last_stable > view.high_watermark:
            yield f"{view.log}: last stable offset {view.last_stable}, high watermark {view.high_watermark}"
        if view.committed and view.records and view.records[-1].offset >= view.last_stable:
            yield f"{view.log}: {view.records[-1].offset} was shown, the last stable offset is {view.last_stable}"


def stable_reaches_end(history: TransactionHistory) -> Iterator[str]:
    """Stuck: after healing the last stable offset of every log reaches its high watermark."""
    for what in history.hanging:
        yield f"hanging: {what}"


def coordinators_go_forward(history: TransactionHistory) -> Iterator[str]:
    """In a log the coordinator epochs of one producer's markers never go back."""
    for log, found in history.last_raw.items():
        last: dict[int, SeenMarker] = {}
        for seen in found:
            if isinstance(seen, SeenMarker):
                before = last.setdefault(seen.producer_id, seen)
                if seen.coordinator_epoch < before.coordinator_epoch:
                    yield f"{log} at {seen.offset}: {seen} comes after {before}"
                last[seen.producer_id] = seen


# ---- groups ----------------------------------------------------------------------------------------------------------


def positions_never_go_back(history: TransactionHistory) -> Iterator[str]:
    """Group offset regress: a position is at least every one that was acknowledged or reported before its request.

    Positions only rise in these runs. Positions of a transaction count only for requests of stable positions.
    """
    told = _reported_positions(history)
    for asked in history.positions:
        for offset, at_ns, why, always in told.get((asked.group, asked.source), ()):
            if at_ns <= asked.asked_ns and offset > max(0, asked.offset) and (always or asked.stable):
                yield f"{asked.group} is at {asked.offset} of {asked.source}; {why} was at {offset} before"
                break


def _reported_positions(
    history: TransactionHistory,
) -> dict[tuple[str, tuple[str, int]], list[tuple[int, int, str, bool]]]:
    """By group and partition: (position, time of the answer, its source, whether it counts for unstable requests)."""
    told: dict[tuple[str, tuple[str, int]], list[tuple[int, int, str, bool]]] = {}
    for one in history.commits:
        told.setdefault((one.group, one.source), []).append((one.offset, one.answered_ns, one.metadata, True))
    for txn in history.txns:
        for key, offset in txn.positions.items() if txn.fate is Fate.COMMITTED else ():
            told.setdefault(key, []).append((offset, txn.ended_ns, txn.name, False))
    for asked in history.positions:
        told.setdefault((asked.group, asked.source), []).append((asked.offset, asked.answered_ns, "an answer", True))
    for rows in told.values():
        rows.sort(key=lambda row: -row[0])
    return told


def past_generations_commit_nothing(history: TransactionHistory) -> Iterator[str]:
    """A commit of a member is refused after any member got its assignment in a newer generation."""
    # Per group: times at which a member got its assignment, with the newest generation so far. The time of the request
    # judges a commit, because the answer may be late.
    newest: dict[str, list[tuple[int, int]]] = {}
    for owned in sorted(history.owned, key=lambda owned: owned.at_ns):
        told = newest.setdefault(owned.group, [])
        told.append((owned.at_ns, max(owned.generation, told[-1][1] if told else -1)))
    for one in [*history.commits, *history.promises]:
        told = newest.get(one.group, [])
        at = bisect_right(told, one.asked_ns, key=lambda row: row[0])
        if at and one.generation < told[at - 1][1]:
            yield f"{one.group} accepted {one.metadata} of generation {one.generation}, {told[at - 1][1]} had begun"


def positions_are_committed(history: TransactionHistory) -> Iterator[str]:
    """A position of a transaction is reported only after its commit was requested, and never after an abort."""
    names = {txn.name: txn for txn in history.txns}
    for asked in history.positions:
        txn = names.get(asked.metadata)
        if txn is None:
            continue
        if txn.fate is Fate.ABORTED:
            yield f"{asked.group} is at {asked.offset} of {asked.source} by {txn.name}, which was aborted"
        elif not 0 <= txn.commit_sent_ns <= asked.answered_ns:
            yield f"{asked.group} is at {asked.offset} of {asked.source}; {txn.name} had not requested its commit"


def one_owner_per_generation(history: TransactionHistory) -> Iterator[str]:
    """In a generation of a group a partition has one owner."""
    owners: dict[tuple[str, int, tuple[str, int]], str] = {}
    for owned in history.owned:
        for route in owned.partitions:
            first = owners.setdefault((owned.group, owned.generation, route), owned.member)
            if first != owned.member:
                yield f"{owned.group} generation {owned.generation}: {route} belongs to {first} and {owned.member}"


def nothing_is_left_out(history: TransactionHistory) -> Iterator[str]:
    """At least once: a member processed every record below the position of a group without transactions."""
    done: dict[tuple[str, tuple[str, int]], list[tuple[int, int]]] = {}
    for one in history.processed:
        done.setdefault((one.group, one.source), []).append((one.first, one.end))
    for key, parts in done.items():
        # Members of different generations may process a part twice, but the parts must not leave a gap.
        reached = 0
        for first, end in sorted(parts):
            if first > reached:
                break
            reached = max(reached, end)
        if reached < history.last_positions.get(key, 0):
            yield f"{key[0]} left out {key[1]} at {reached}, its position is {history.last_positions[key]}"


Checker = Callable[[TransactionHistory], Iterator[str]]
CHECKERS: Final[tuple[Checker, ...]] = (
    no_dirty_write,
    no_aborted_read,
    no_intermediate_read,
    no_circular_flow,
    committed_is_kept,
    transactions_are_whole,
    copied_once,
    views_agree,
    each_value_once,
    views_follow_markers,
    stable_is_below_watermark,
    stable_reaches_end,
    coordinators_go_forward,
    positions_never_go_back,
    past_generations_commit_nothing,
    positions_are_committed,
    one_owner_per_generation,
    nothing_is_left_out,
)
BESIDE: Final = cluster.BESIDE
"""Properties that do not count as end-to-end evidence of a missing safeguard."""


def find_violations(history: TransactionHistory, at_most: int = 5) -> list[tuple[str, str]]:
    """The violations in a history: (property, sentence), at most `at_most` per property.

    After a loss with an excuse only the properties of a cluster are checked.
    """
    return cluster.find_violations(history, at_most) + check_properties(
        history, CHECKERS if history.is_whole else (), at_most
    )
