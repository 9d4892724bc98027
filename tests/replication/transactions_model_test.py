"""Any history of transactions in a partition with two replicas, against a model that knows offsets and outcomes only.

Both replicas must show a read_committed consumer the same, whatever was cut, rolled, restarted or deleted meanwhile.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replication.members import Cluster, Member

from ottla.config.topic import TopicConfig
from ottla.record.batch import Record, batches_of, encode_batch, records_of
from ottla.record.control import Marker
from ottla.sim.machines.machine import Death
from ottla.storage.retention.retention_enforcer import delete_old_segments

PRODUCERS = (1, 2, 3)


class Entry:
    """What is at an offset: a value, or the end of its producer's transaction."""

    def __init__(self, producer_id: int, value: bytes | None, commit: bool = False) -> None:
        self.producer_id = producer_id
        """0: of no transaction."""
        self.value = value
        self.commit = commit


class History:
    """A leader and a follower, and what their log should hold."""

    def __init__(self) -> None:
        self.cluster = Cluster(2, config=TopicConfig(index_interval_bytes=200))
        self.cluster.elect(1, isr=(1, 2))
        self.entries: list[Entry] = []
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.count = 0

    @property
    def leader(self) -> Member:
        return self.cluster.members[self.cluster.state.leader]

    @property
    def follower(self) -> Member:
        return self.cluster.members[3 - self.cluster.state.leader]

    # -- what happens ------------------------------------------------------------------------------------------------

    def play(self, what: str, number: int) -> None:
        getattr(self, f"_{what}")(number)
        mark = self.leader.hw
        self.expect(self.leader, mark)

    def _plain(self, _: int) -> None:
        self.count += 1
        self.leader.produce(b"%d" % self.count)
        self.entries.append(Entry(0, b"%d" % self.count))

    def _write(self, number: int) -> None:
        producer_id = PRODUCERS[number % 3]
        self.count += 1
        batch = encode_batch(
            [Record(0, 1_700_000_000_000, None, b"%d" % self.count, ())],
            producer_id=producer_id,
            producer_epoch=self.epochs[producer_id],
            base_sequence=self.sequences[producer_id],
            transactional=True,
        )
        self.leader.partition.leader_role.append(memoryview(batch), 1, self.leader.clock.now())
        self.sequences[producer_id] += 1
        self.entries.append(Entry(producer_id, b"%d" % self.count))

    def _end(self, number: int) -> None:
        producer_id, commit = PRODUCERS[number % 3], number % 2 == 0
        self.epochs[producer_id] += 1
        self.sequences[producer_id] = 0
        now, epoch = self.leader.clock.now(), self.epochs[producer_id]
        for _ in range(2):  # the second one is here already
            self.leader.partition.leader_role.append_marker(producer_id, epoch, Marker(commit, 1), True, now)
        self.entries.append(Entry(producer_id, None, commit))

    def _fetch(self, _: int) -> None:
        self.follower.fetch()

    def _roll(self, _: int) -> None:
        self.leader.log.roll_segment()

    def _settle(self, _: int = 0) -> None:
        """Both have everything; an answer ends where a segment does, and one more brings the high watermark."""
        while self.follower.leo < self.leader.leo:
            before = self.follower.leo
            self.follower.fetch()
            assert self.follower.leo > before, "a round brings something"
        self.follower.fetch(2)
        assert self.follower.leo == self.leader.leo == self.leader.hw == len(self.entries)
        self.expect(self.follower, self.follower.hw)

    def _fail_over(self, number: int) -> None:
        """The follower leads, the old leader truncates what only it had, and the producers begin again."""
        kept = self.follower.leo
        if number % 2:
            self.leader.die(Death.KILL)
            self.cluster.restart(self.leader.node_id)
        self.cluster.elect(self.follower.node_id)
        del self.entries[kept:]
        for _ in range(4):
            self.follower.fetch()
        for producer_id in PRODUCERS:
            self._end(producer_id if number % 4 < 2 else producer_id + 3)

    def _restart(self, _: int) -> None:
        self._settle()
        follower = self.follower
        follower.save()
        follower.die(Death.KILL)
        self.cluster.restart(follower.node_id)
        self._settle()

    def _delete(self, number: int) -> None:
        log = self.leader.log
        self.leader.partition.leader_role.raise_start(min(self.leader.hw, log.start_offset + number))
        delete_old_segments(log, self.leader.clock.now())

    # -- what is seen ------------------------------------------------------------------------------------------------

    def outcomes(self, mark: int) -> tuple[dict[int, bool], int]:
        """Which offsets of transactions are committed or void; where, as of `mark`, the first is that is neither."""
        ends: dict[int, bool] = {}
        open_since: dict[int, list[int]] = {}
        unstable = []
        for offset, entry in enumerate(self.entries):
            if entry.producer_id and entry.value is not None:
                open_since.setdefault(entry.producer_id, []).append(offset)
            elif entry.producer_id:
                offsets = open_since.pop(entry.producer_id, [])
                ends |= dict.fromkeys(offsets, entry.commit)
                if offsets and offset >= mark:
                    unstable.append(offsets[0])
        unstable += [offsets[0] for offsets in open_since.values()]
        return ends, min([mark, *unstable])

    def expect(self, member: Member, mark: int) -> None:
        ends, unstable = self.outcomes(mark)
        start = member.log.start_offset
        stable = max(start, unstable)
        assert member.partition.last_stable_offset == stable
        wanted = [
            entry.value
            for offset, entry in enumerate(self.entries[start:stable], start)
            if entry.value is not None and (not entry.producer_id or ends[offset])
        ]
        for max_bytes in (1, 250, 1 << 20):
            assert read_committed(member, stable, max_bytes) == wanted


def read_committed(member: Member, limit: int, max_bytes: int) -> list[bytes | None]:
    """As a consumer reads (KIP-98), fetch by fetch."""
    log, values = member.log, []
    offset = log.start_offset
    while offset < limit:
        region = member.partition.read(offset, max_bytes, limit, True, warmed=True)
        content = bytearray(region.size)
        region.file.read_now(region.pos, memoryview(content))
        found = log.segments.aborted_in(region, offset, limit, log.end_offset)
        waiting = sorted((one.first_offset, one.producer_id) for one in found)
        dropping: set[int] = set()
        for pos, header in batches_of(memoryview(content)):
            while waiting and waiting[0][0] <= header.last_offset:
                dropping.add(waiting.pop(0)[1])
            records = [one for one in records_of(memoryview(content), pos, max_bytes=1 << 20) if one.offset >= offset]
            if header.is_control:
                dropping.discard(header.producer_id)
            elif header.producer_id not in dropping:
                values += [one.value for one in records]
        offset = header.last_offset + 1
    return values


STEPS = (
    ["write"] * 6 + ["end"] * 4 + ["plain"] * 2 + ["fetch"] * 4 + ["roll", "settle", "fail_over", "restart", "delete"]
)
HISTORIES = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 11)), max_size=40)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(HISTORIES)
def test_read_committed_returns_committed_records_only(history: list[tuple[str, int]]) -> None:
    world = History()
    for what, number in history:
        world.play(what, number)
    world._settle()
