"""One chaos run: load by clients, faults by the nemesis, and the verdict at the end.

Zone: real. The seed decides kinds, order and length of the faults. The timing of the machine differs, so a seed does
not repeat a run exactly. The log has one JSON object per line: the first has seed and settings, the last the counts.
"""

from __future__ import annotations

import collections
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from testbench.chaos.arena import Arena, View
from testbench.chaos.clients import Clients
from testbench.chaos.faults import STORE, WIRES, Fault, Faults, weights
from testbench.chaos.verdict import judge_log, judge_reader, judge_replicas, read_notes

TOPIC = "chaos"
PARTITIONS = 6
PROGRESS_S = 60
"""Within this time after a fault every producer must get an acknowledgement, or the cluster is stuck."""
WHOLE_S = 90
"""Within this time after a fault every replica must be in sync."""
END_S = 300
STICKS_S = 30
"""A producer that takes longer to end is stuck."""


class Stuck(Exception):
    """The cluster does not recover after the faults."""


class Journal:
    """The log file of a run, and the lines on the terminal."""

    def __init__(self, file: IO[str], say: Callable[[str], None]) -> None:
        self._file = file
        self._say = say
        self._began = time.monotonic()

    def note(self, event: str, **details: Any) -> None:
        """Log one event."""
        at = round(time.monotonic() - self._began, 3)
        self._file.write(json.dumps({"at": at, "event": event, **details}) + "\n")
        self._file.flush()
        self._say(f"{at:8.1f}  {event:10} " + "  ".join(f"{key}={value}" for key, value in details.items()))


class Run:
    """A run in a ready arena."""

    def __init__(self, arena: Arena, journal: Journal, seed: int, rate: float, *, flush: bool = False) -> None:
        self.arena = arena
        self.journal = journal
        self.faults: collections.Counter[str] = collections.Counter()
        self._rng = random.Random(seed)
        self._makes = Faults(arena, self._rng)
        self._weights = weights(arena.engine, flush=flush)
        arena.create_topic(TOPIC, PARTITIONS)
        self.clients = Clients(arena, TOPIC, PARTITIONS, rate)

    def chaos(self, seconds: float, at_least: int = 0) -> None:
        """Cause faults until the time is over and there were enough of them. Raises Stuck, NodeError."""
        self.await_progress()
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.faults.total() < at_least:
            self._blow(self._choose())
            if self._rng.random() < 0.4:
                self.await_whole()
            time.sleep(self._rng.uniform(0, 1))

    def _choose(self) -> list[Fault]:
        """Choose one fault, or two that overlap."""
        view = self.arena.look(TOPIC)
        count = 2 if self._rng.random() < 0.35 else 1
        chosen: list[Fault] = []
        for kind in self._rng.choices(list(self._weights), list(self._weights.values()), k=count):
            fault = self._makes.make(kind, view)
            fits = not any(fault.alone or other.alone or fault.touches & other.touches for other in chosen)
            if fits:
                chosen.append(fault)
        return chosen

    def _blow(self, faults: list[Fault]) -> None:
        """Begin faults one after the other, wait, end them, and check that the cluster recovers."""
        alone = any(fault.alone for fault in faults)
        if alone:
            self.await_whole()
        over = 0.0
        for fault in faults:
            self.journal.note("begin", kind=fault.kind, target=fault.target, seconds=round(fault.seconds, 2))
            fault.begin()
            self.faults[fault.kind] += 1
            over = max(over, time.monotonic() + fault.seconds)
            if fault is not faults[-1]:
                time.sleep(min(fault.seconds, self._rng.uniform(0, 1)))
        time.sleep(max(0.0, over - time.monotonic()))
        for fault in sorted(faults, key=_order_of_ends):
            fault.end()
        self.journal.note("end", kinds=[fault.kind for fault in faults])
        self.await_progress()
        if alone:
            self.await_whole()

    def await_progress(self) -> None:
        """Wait until every producer has got an acknowledgement. Raises Stuck."""
        before = self.clients.acknowledged()
        began = time.monotonic()
        while any(now <= before[number] for number, now in self.clients.acknowledged().items()):
            self._check_clients()
            if time.monotonic() > began + PROGRESS_S:
                stuck = [number for number, now in self.clients.acknowledged().items() if now <= before[number]]
                raise Stuck(f"producers {stuck} got no acknowledgement in {PROGRESS_S} s; {self._look()}")
            time.sleep(0.05)
        took = round(time.monotonic() - began, 2)
        self.journal.note("progress", seconds=took, acknowledged=sum(self.clients.acknowledged().values()))

    def await_whole(self) -> None:
        """Wait until every replica is in sync according to Metadata. Raises Stuck."""
        began = time.monotonic()
        while True:
            view = self._look()
            if view is not None and view.whole:
                self.journal.note("whole", seconds=round(time.monotonic() - began, 2))
                return
            self._check_clients()
            if time.monotonic() > began + WHOLE_S:
                raise Stuck(f"not all replicas are in sync after {WHOLE_S} s: {view}")
            time.sleep(0.2)

    def _look(self) -> View | None:
        return self.arena.look(TOPIC)

    def _check_clients(self) -> None:
        if dead := self.clients.dead():
            raise Stuck(f"clients ended by themselves: {', '.join(dead)}")

    def finish(self) -> list[str]:
        """End the clients, then check the results. Returns complaints."""
        self.await_whole()
        for client in self.clients.producers.values():
            client.ask_to_end()
        self._unstick()
        found = [client.await_end(END_S) for client in self.clients.producers.values()]
        self.journal.note("flushed", acknowledged=sum(self.clients.acknowledged().values()))
        readers = [*self.clients.consumers, self.clients.read("consumer-last")]
        for client in readers:
            client.ask_to_end()
        found += [client.await_end(END_S) for client in readers]
        complaints = [each for each in found if each is not None]
        return complaints or self._judge()

    def _unstick(self) -> None:
        """Move leaders when a producer does not end.

        When the leader of a partition changes twice while librdkafka (2.16) changes brokers, it may keep sending to a
        broker that is not the leader any more, in spite of the errors. The next change of the leader ends that.
        """
        deadline = time.monotonic() + STICKS_S
        while any(client.alive for client in self.clients.producers.values()):
            if time.monotonic() > deadline:
                self.journal.note("preferred leaders elected", why="a producer does not end")
                self.arena.elect_preferred()
                return
            time.sleep(0.2)

    def _judge(self) -> list[str]:
        fates = {number: client.out.read_bytes() for number, client in self.clients.producers.items()}
        final = read_notes(self.arena.directory / "consumer-last.out")
        # Records wait ten minutes for their acknowledgement, so one that failed was refused for good, or a broker said
        # that its topic does not exist.
        refused = [client for client in self.clients.producers.values() if (client.counts() or [0, 0, 0])[2]]
        complaints = [f"{client.name}: records failed: {client.printed_errors()}" for client in refused]
        complaints += judge_log(fates, final, PARTITIONS)
        for client in self.clients.consumers:
            complaints += judge_reader(client.name, read_notes(client.out), final, PARTITIONS)
        self.journal.note("judged", records=len(final), complaints=len(complaints))
        return complaints + self._replicas()

    def _replicas(self) -> list[str]:
        """Compare the logs. There are no writers and all replicas are in sync, so they must become equal soon."""
        directories = {str(broker.id): broker.data for broker in self.arena.brokers}
        deadline = time.monotonic() + 15
        while True:
            differ = [line for index in range(PARTITIONS) for line in judge_replicas(TOPIC, index, directories)]
            if not differ or time.monotonic() > deadline:
                return differ
            time.sleep(1)

    def counts(self) -> dict[str, Any]:
        """The numbers of the run."""
        return {
            "acknowledged": sum(self.clients.acknowledged().values()),
            "failed": self.clients.failed(),
            "faults": self.faults.total(),
            "kinds": dict(sorted(self.faults.items())),
        }


def _order_of_ends(fault: Fault) -> int:
    """Heal the faults that would keep a broker from starting: its network and the metadata store."""
    return 0 if fault.touches & WIRES else 1 if fault.touches & STORE else 2


def _keep(arena: Arena) -> list[str]:
    """Copy the data of brokers before the arena removes their disks. Returns those that could not be read."""
    left = []
    for broker in arena.brokers:
        try:
            shutil.copytree(broker.data, arena.directory / f"data-{broker.id}", ignore=shutil.ignore_patterns("*.lock"))
        except OSError as error:  # the run ended during a power cut
            left.append(f"the data of broker {broker.id} is not kept: {error}")
    return left


def _tidy(directory: Path) -> None:
    """Remove everything except the log after a run that passed."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "chaos.log":
            path.unlink()


def run(
    engine: str,
    directory: Path,
    *,
    minutes: float,
    seed: int,
    rate: float,
    say: Callable[[str], None],
    at_least: int = 0,
    flush: bool = False,
) -> tuple[list[str], dict[str, Any]]:
    """Run one seed. Returns complaints (none: it passed) and counts; the log is `<directory>/chaos.log`.

    `at_least`: with fewer faults the run continues after its minutes, as on a slow machine.
    `flush`: brokers flush before they acknowledge (log.flush.interval.messages=1), and all lose power at once.
    """
    settings = {"log.flush.interval.messages": "1"} if flush else {}
    complaints: list[str] = []
    counts: dict[str, Any] = {}
    with (directory / "chaos.log").open("w") as file:
        journal = Journal(file, say)
        journal.note("start", engine=engine, seed=seed, minutes=minutes, rate=rate, flush=flush)
        with Arena(engine, directory, settings) as arena:
            one = Run(arena, journal, seed, rate, flush=flush)
            try:
                one.chaos(minutes * 60, at_least)
                complaints += one.finish()
            except Exception as error:
                complaints.append(f"{type(error).__name__}: {error}")
            finally:
                counts = one.counts()
                one.clients.kill()
                complaints += list(arena.complaints())
            if complaints:
                complaints += _keep(arena)
        journal.note("verdict", complaints=complaints, **counts)
    if not complaints:
        _tidy(directory)
    return complaints, counts
