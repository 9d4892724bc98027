"""A million committed offsets in one shard of groups, loaded after a kill of the broker; meanwhile a member of a group
in another shard sends heartbeats.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from testbench.apache_kafka.packages import BenchError

from bench.group_work import Group, Member, await_groups
from bench.peers import Process, ottla, rss_mib
from bench.wire import Crowd, Script, frame_of
from bench.work import make_topic
from ottla.cluster.coordinators import partition_for
from ottla.cluster.image import CONSUMER_OFFSETS
from ottla.storage.layout import CLEANED_UNTIL
from ottla.wire.messages import HeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest

TOPIC = "offsets"
BATCH = 100
"""Offsets of one commit."""
SHARDS = 50
SHARD = 7
COMMITTERS = 8
HEARTBEAT_PAUSE_S = 0.002
LOADING = (14, 15, 16)
COMMIT_VERSION = 8
AS_IT_IS = {"log.cleaner.enable": "false", "offsets.topic.segment.bytes": str(8 << 20)}
"""Settings that prevent compaction until it is requested."""
COMPACTING = {"log.cleaner.backoff.ms": "100", "log.cleaner.min.cleanable.ratio": "0.01"}
LONGEST_S = 600
FETCH_VERSION = 8


@dataclass
class Loaded:
    """Figures of one restart."""

    seconds: float
    """Time from the start of the process until all offsets could be fetched."""
    stall_ms: float
    """The slowest heartbeat of the other shard, from the first accepted one."""
    rss_mib: float
    """Resident memory then."""


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def names_in(shard: int) -> Iterator[str]:
    """Groups of one shard."""
    return (name for at in count() if partition_for(name := f"stored-{at}", SHARDS) == shard)


def _commit(group_id: str) -> OffsetCommitRequest:
    places = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=at, committed_offset=1_000_000 + at, committed_leader_epoch=0
        )
        for at in range(BATCH)
    ]
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name=TOPIC, partitions=places)
    return OffsetCommitRequest(group_id=group_id, topics=[topic])


class Store:
    """A broker whose groups have that many offsets."""

    def __init__(self, directory: Path, offsets: int, times: int = 1) -> None:
        """Commit all offsets, `times` times."""
        self._directory = directory
        self._settings = AS_IT_IS if times > 1 else None
        self._broker: Process = ottla(directory, self._settings)
        make_topic(self._broker.port, TOPIC, BATCH)
        self._names = list(islice(names_in(SHARD), offsets // BATCH))
        crowd = Crowd()
        try:
            await_groups(self._broker.port, crowd)
            other = Group(next(names_in(SHARD + 1)))
            self._member = Member(other, crowd.connect(self._broker.port))
            crowd.run([(self._member.line, self._member.join(0))], 60, "joining")
            scripts = [
                (crowd.connect(self._broker.port), _commits(self._names[at::COMMITTERS] * times))
                for at in range(COMMITTERS)
            ]
            crowd.run(scripts, 600, "committing offsets")
        finally:
            crowd.close()

    def restart(self) -> Loaded:
        """Kill the broker, start it again, and measure the loading."""
        self._broker.kill()
        began = time.perf_counter()
        self._broker = ottla(self._directory, self._settings)
        crowd = Crowd()
        try:
            return self._watch(crowd, began)
        finally:
            crowd.close()

    def compact(self) -> None:
        """Compact the topic of offsets, up to its active segment."""
        self._broker.kill()
        self._broker = ottla(self._directory, COMPACTING)
        place = f"{CONSUMER_OFFSETS}-{SHARD}"
        (log,) = self._directory.rglob(place)
        noted, began = log.parent / CLEANED_UNTIL, time.monotonic()
        while f"{CONSUMER_OFFSETS} {SHARD} {max(int(each.stem) for each in log.glob('*.log'))}\n" not in _text(noted):
            if time.monotonic() - began > LONGEST_S:
                raise BenchError(f"{place} is not compacted after {LONGEST_S} s")
            time.sleep(0.05)

    def _watch(self, crowd: Crowd, began: float) -> Loaded:
        beats: list[float] = []
        loaded: list[float] = []
        port = self._broker.port
        crowd.start(crowd.connect(port), self._beat(beats), lambda _: None)
        crowd.start(crowd.connect(port), self._probe(), lambda _: loaded.append(time.perf_counter()))
        crowd.wait(lambda: bool(loaded), 120, "loading offsets")
        settled = loaded[0] + 1.0
        crowd.wait(lambda: time.perf_counter() > settled, 10, "heartbeats after loading")
        self._check(crowd)
        if not beats:
            raise BenchError("no heartbeat was taken while offsets were loaded")
        return Loaded(loaded[0] - began, max(beats) * 1e3, rss_mib(self._broker.pid))

    def _beat(self, beats: list[float]) -> Script:
        """Send heartbeats without end; counted from the first accepted one."""
        member = self._member
        request = HeartbeatRequest(
            group_id=member.group.name, generation_id=member.generation, member_id=member.member_id
        )
        frame_of(request, 4)  # compile the codec now: its time is not the broker's
        while True:
            sent = time.perf_counter()
            response = yield request, 4
            if response.error_code == 0:
                beats.append(time.perf_counter() - sent)
            elif beats or response.error_code not in LOADING:
                raise BenchError(f"Heartbeat met error {response.error_code}")
            yield HEARTBEAT_PAUSE_S

    def _probe(self) -> Script:
        """Wait until the offsets of the last group can be fetched."""
        while True:
            response = yield _fetch(self._names[-1:]), FETCH_VERSION
            code = response.groups[0].error_code
            if code not in LOADING:
                break
            yield 0.01
        if code:
            raise BenchError(f"OffsetFetch met error {code}")

    def _check(self, crowd: Crowd) -> None:
        """Check all offsets of one in twenty groups. Raises BenchError."""
        names = self._names[::20]

        def ask() -> Script:
            found = 0
            for name in names:
                response = yield _fetch([name]), FETCH_VERSION
                rows = response.groups[0].topics[0].partitions
                found += sum(each.committed_offset == 1_000_000 + each.partition_index for each in rows)
            return found

        (found,) = crowd.run([(crowd.connect(self._broker.port), ask())], 120, "fetching offsets")
        if found != len(names) * BATCH:
            raise BenchError(f"{found} of {len(names) * BATCH} offsets were loaded")

    def stop(self) -> None:
        """End the broker."""
        self._broker.kill()


def _commits(names: list[str]) -> Script:
    for name in names:
        response = yield _commit(name), COMMIT_VERSION
        bad = {part.error_code for part in response.topics[0].partitions} - {0}
        if bad:
            raise BenchError(f"OffsetCommit met errors {bad}")


def _fetch(names: list[str]) -> OffsetFetchRequest:
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    return OffsetFetchRequest(groups=groups)
