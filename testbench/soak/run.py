"""A soak: mixed load on three brokers for hours, with occasional faults, and the verdict at the end.

Zone: real. Hosts, disks, brokers and producers are those of the chaos runs. Here the load matters: faults come one by
one, and readers check all records during the run, because retention deletes them.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from testbench.chaos.arena import BROKERS, Arena
from testbench.chaos.clients import Client
from testbench.chaos.faults import Fault, Faults
from testbench.chaos.run import WHOLE_S, Journal, Stuck
from testbench.soak.pacing import Pacing
from testbench.soak.watch import Samples, judge_disk, judge_growth

HERE = Path(__file__).parent
STREAM, TABLE, PAIRS = "stream", "table", "pairs"
PARTITIONS = {STREAM: 6, TABLE: 3, PAIRS: 2}
KEYS = 5_000
SHARES = {STREAM: 0.8, TABLE: 0.1, PAIRS: 0.1}
"""Parts of the rate."""
RECORD_BYTES = 300
"""More bytes than a record takes."""
KEPT_S = 90
"""Retention keeps at least the last seconds of the stream, in a short run a quarter of it: readers must keep up."""
SEGMENTS = 4
"""Segments of a partition that retention keeps."""
STATE_SEGMENT_BYTES = 1 << 20
"""Segment size of the transactions' log, which is compacted, so that coordinators load it quickly."""
WRITING_S = WHOLE_S / 3
"""For this time a replica catches up while others write. Then writers wait for it, as the machine has no power left."""
CHECK_S = 5
DELAY_S = 1
SLACK = 1.25
"""Allowance for indexes, snapshots, and writes between two retention checks of a busy broker."""
SAMPLE_S = 5
PAUSES = (1 / 30, 1 / 10)
"""Pauses between faults, as parts of a run; at most PAUSE_MAX_S."""
PAUSE_MAX_S = 40
END_S = 400
VICTIM = 2
"""Index of the broker that dies; the memory of the other two is checked."""


class Soak:
    """Load, faults and samples in a ready arena."""

    def __init__(self, arena: Arena, journal: Journal, seconds: float, rate: float, seed: int) -> None:
        self.arena = arena
        self.seconds = seconds
        self.journal = journal
        self.rate = rate
        self.faults: Counter[str] = Counter()
        self.samples = {f"broker {at + 1}": Samples() for at in range(BROKERS)}
        self.clients: dict[str, Client] = {}
        self._pacing: Pacing | None = None
        self._rng = random.Random(seed)
        self._makes = Faults(arena, self._rng)
        self._began = time.monotonic()

    # -- the load --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the topics, and start all clients."""
        self._make_topics()
        stream, pairs, table = (self.rate * SHARES[topic] for topic in (STREAM, PAIRS, TABLE))
        self._client("stream-0", "chaos/producer.py", STREAM, PARTITIONS[STREAM], 0, stream / 2)
        self._client("stream-1", "chaos/producer.py", STREAM, PARTITIONS[STREAM], 1, stream / 2)
        self._client("stream-reader", "soak/stream.py", STREAM, PARTITIONS[STREAM], 2)
        self._client("table", "soak/table.py", TABLE, PARTITIONS[TABLE], KEYS, table)
        self._client("pairs", "soak/pairs.py", PAIRS, pairs, before="write")
        self._client("pairs-reader", "soak/pairs.py", PAIRS, before="read")
        writers = [self.clients["stream-0"], self.clients["stream-1"]]
        kept = self.segment_bytes * SEGMENTS * PARTITIONS[STREAM] // RECORD_BYTES
        self._pacing = Pacing(writers, self.clients["stream-reader"], kept)

    def _client(self, name: str, script: str, *words: object, before: str = "") -> None:
        command = [sys.executable, str(HERE.parent / script), *([before] if before else []), self.arena.bootstrap]
        self.clients[name] = Client(name, [*command, *map(str, words)], self.arena)

    def _make_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.arena.bootstrap, "log_level": 0})
        delete = {
            "min.insync.replicas": "2",
            "segment.bytes": str(self.segment_bytes),
            "retention.bytes": str(self.segment_bytes * SEGMENTS),
        }
        compact = {
            "min.insync.replicas": "2",
            "cleanup.policy": "compact",
            "segment.bytes": str(self.segment_bytes),
            "segment.ms": "10000",
            "min.cleanable.dirty.ratio": "0.1",
            "delete.retention.ms": "5000",
        }
        topics = [
            NewTopic(name, PARTITIONS[name], BROKERS, config=config)
            for name, config in ((STREAM, delete), (PAIRS, delete), (TABLE, compact))
        ]
        for future in admin.create_topics(topics, operation_timeout=30).values():
            future.result(60)

    @property
    def segment_bytes(self) -> int:
        """Segment size with which retention keeps KEPT_S seconds of the stream."""
        kept_s = min(KEPT_S, self.seconds / 4)
        return max(1 << 18, int(self.rate * RECORD_BYTES * kept_s / PARTITIONS[STREAM] / SEGMENTS))

    @property
    def bound(self) -> int:
        """The most bytes that the topics may take on a broker; the table is far smaller than what retention leaves of
        the others, and what is not compacted yet is not more."""
        partitions = sum(PARTITIONS.values())
        late = self.rate * RECORD_BYTES * (CHECK_S + DELAY_S)
        return int(SLACK * (partitions * (SEGMENTS + 1) * self.segment_bytes + late))

    # -- while it goes on ------------------------------------------------------------------------------------------

    def go(self, at_least: int = 0, records: int = 0) -> None:
        """Take samples, and cause faults, kind by kind in turn, until the time is over and there are as many faults and
        records. Raises Stuck, NodeError."""
        self._await_progress()
        self._began = time.monotonic()
        end = self._began + self.seconds
        for make in itertools.cycle((self._directory, self._kill, self._full, self._stop, self._failing)):
            pause = min(PAUSE_MAX_S, self.seconds * self._rng.uniform(*PAUSES))
            self._watch(min(pause, end - time.monotonic()))
            if time.monotonic() >= end and self.faults.total() >= at_least and self.acknowledged() >= records:
                return
            self._strike(make)

    def _await_progress(self) -> None:
        began = time.monotonic()
        while not all(any(client.counts()) for client in self.clients.values()):
            self._check_clients()
            if time.monotonic() > began + WHOLE_S:
                idle = [client.name for client in self.clients.values() if not any(client.counts())]
                raise Stuck(f"{', '.join(idle)} did nothing in {WHOLE_S} s")
            time.sleep(0.2)

    def _strike(self, make: Callable[[], Fault]) -> None:
        fault = make()
        self.journal.note("begin", kind=fault.kind, target=fault.target, seconds=round(fault.seconds, 1))
        self.faults[fault.kind] += 1
        fault.begin()
        self._watch(fault.seconds)
        fault.end()
        self._await_whole()
        self.journal.note("end", kind=fault.kind)

    def _kill(self) -> Fault:
        broker = self.arena.brokers[VICTIM]
        return Fault("kill", f"broker {VICTIM + 1}", self._rng.uniform(0, 5), broker.kill, broker.start)

    def _stop(self) -> Fault:
        broker = self.arena.brokers[VICTIM]
        return Fault("stop", f"broker {VICTIM + 1}", self._rng.uniform(0, 3), broker.stop, broker.start)

    def _full(self) -> Fault:
        """Fill the disk of a broker; it continues without writes."""
        at = self._rng.randrange(BROKERS)
        disk = self.arena.disks[at]
        return Fault("disk full", f"broker {at + 1}", self._rng.uniform(3, 8), disk.fill, disk.drain)

    def _directory(self) -> Fault:
        """Fail one of two log directories; the broker continues with the other. Later the disk returns, without data
        that was not synced, and the broker is restarted."""
        broker, spare = self.arena.brokers[VICTIM], self.arena.spares[VICTIM]

        def replace() -> None:
            broker.kill()
            spare.come_back()
            broker.start()

        return Fault("directory failure", f"broker {VICTIM + 1}", self._rng.uniform(2, 6), spare.die, replace)

    def _failing(self) -> Fault:
        """Fail the whole disk of a broker, which ends the broker; data that was not synced is lost."""
        return self._makes.power_cut_of(VICTIM, f"broker {VICTIM + 1}", self._rng.uniform(0, 3))

    def _watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, SAMPLE_S))
            self._sample()
            self._check_clients()

    def _sample(self) -> None:
        at = time.monotonic() - self._began
        for index, samples in enumerate(self.samples.values()):
            broker = self.arena.brokers[index]
            if broker.alive:
                samples.look(at, broker.pid, self.arena.data_of(index), tuple(PARTITIONS))
        self.journal.note(
            "sample",
            records=self.acknowledged(),
            rss_mib=[round(each.rss[-1][2] / 2**20, 1) if each.rss else None for each in self.samples.values()],
            disk_mib=[round(each.disk[-1][1] / 2**20, 1) if each.disk else None for each in self.samples.values()],
        )

    def _check_clients(self) -> None:
        dead = [client for client in self.clients.values() if not client.alive]
        if dead:
            raise Stuck("; ".join(client.await_end(1) or f"{client.name} ended by itself" for client in dead))

    def _await_whole(self) -> None:
        """Wait until all replicas are in sync: beside the writers, then without them. Raises Stuck."""
        began = time.monotonic()
        while not all(view is not None and view.whole for view in map(self.arena.look, PARTITIONS)):
            self._check_clients()
            if time.monotonic() > began + WHOLE_S:
                raise Stuck(f"not all replicas are in sync after {WHOLE_S} s: {self.arena.look(STREAM)}")
            if self._pacing is not None and time.monotonic() > began + WRITING_S:
                self._pacing.hold()
            time.sleep(0.2)
        if self._pacing is not None:
            self._pacing.release()

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """End the writers, then let the readers read to the ends. Returns complaints."""
        self._await_whole()
        self._end_pacing()
        found: list[str | None] = []
        for names in (("stream-0", "stream-1", "pairs"), ("table", "stream-reader", "pairs-reader")):
            for name in names:
                self.clients[name].ask_to_end()
            found += [self.clients[name].await_end(END_S) for name in names]
        complaints = [each for each in found if each is not None] or self._compare()
        return complaints + judge_growth(self.samples, self.seconds) + judge_disk(self.samples, self.bound)

    def _compare(self) -> list[str]:
        """Compare the records written with those read."""
        counts = {name: client.counts() for name, client in self.clients.items()}
        sent = [counts["stream-0"], counts["stream-1"]]
        read = json.loads(self.clients["stream-reader"].out.read_text())
        found = [
            f"producer {at} sent {each[0]} records, {each[1]} were acknowledged, {each[2]} failed, {seen} were read"
            for at, (each, seen) in enumerate(zip(sent, read, strict=True))
            if each != [seen, seen, 0]
        ]
        committed = json.loads(self.clients["pairs"].out.read_text())["committed"]
        seen_pairs = json.loads(self.clients["pairs-reader"].out.read_text())
        if seen_pairs != [committed] * PARTITIONS[PAIRS]:
            found.append(f"{committed} numbers were committed in each partition, {seen_pairs} were read")
        return found

    def acknowledged(self) -> int:
        """Records so far, of all writers."""
        return sum((self.clients[name].counts() or [0, 0, 0])[1] for name in ("stream-0", "stream-1", "table", "pairs"))

    def counts(self) -> dict[str, Any]:
        """The numbers of the run."""
        outs = {name: client.out for name, client in self.clients.items() if name in ("table", "pairs")}
        return {
            "acknowledged": self.acknowledged(),
            "faults": dict(sorted(self.faults.items())),
            "pauses": 0 if self._pacing is None else self._pacing.pauses,
            "holds": 0 if self._pacing is None else self._pacing.holds,
            **{name: json.loads(out.read_text()) for name, out in outs.items() if out.exists()},
            "rss_growth": {name: each.growth(self.seconds) for name, each in self.samples.items()},
            "rss_mib": {name: each.rss[-1][2] / 2**20 for name, each in self.samples.items() if each.rss},
            "peak_disk_bytes": {name: each.peak_disk for name, each in self.samples.items()},
            "disk_bound_bytes": self.bound,
        }

    def _end_pacing(self) -> None:
        if self._pacing is not None:
            self._pacing.stop()

    def kill(self) -> None:
        """SIGKILL to all clients."""
        self._end_pacing()
        for client in self.clients.values():
            client.kill()


def run(
    directory: Path,
    *,
    minutes: float,
    seed: int,
    rate: float,
    say: Callable[[str], None],
    at_least: int = 0,
    records: int = 0,
) -> tuple[list[str], dict[str, Any]]:
    """Run a soak. Returns complaints (none: it passed) and counts; `<directory>/soak.log` has every sample and fault,
    `<directory>/soak.json` the result. `at_least`, `records`: with fewer faults or records the run continues after its
    minutes, as on a slow machine."""
    settings = {
        "log.retention.check.interval.ms": str(CHECK_S * 1_000),
        "log.segment.delete.delay.ms": str(DELAY_S * 1_000),
        "log.cleaner.backoff.ms": "1000",
        "transaction.state.log.segment.bytes": str(STATE_SEGMENT_BYTES),
        # Fast fail-over is the subject of the chaos run. Here a busy machine must not end sessions by itself.
        "zookeeper.session.timeout.ms": "10000",
        "replica.lag.time.max.ms": "10000",
    }
    complaints: list[str] = []
    with (directory / "soak.log").open("w") as file:
        journal = Journal(file, say)
        journal.note("start", seed=seed, minutes=minutes, rate=rate)
        with Arena("zookeeper", directory, settings, spare=True) as arena:
            soak = Soak(arena, journal, minutes * 60, rate, seed)
            try:
                soak.start()
                soak.go(at_least, records)
                complaints += soak.finish()
            except Exception as error:
                complaints.append(f"{type(error).__name__}: {error}")
            finally:
                soak.kill()
                complaints += list(arena.complaints())
            counts = soak.counts()
        journal.note("verdict", complaints=complaints, **counts)
    result = {"seed": seed, "minutes": minutes, "rate": rate, "complaints": complaints, **counts}
    (directory / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
    return complaints, counts
