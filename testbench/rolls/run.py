"""One roll: brokers of a release on ZooKeeper, each replaced by another release in turn, and back.

Zone: real. While clients work. At the end: every acknowledged record is there once, transactions are whole, committed
offsets never went back, and the settings of topics are the same.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka.admin import NewTopic

from testbench.cluster import OttlaOnZooKeeper, OttlaServer
from testbench.copiers import Copier
from testbench.releases import release_source
from testbench.rolls.clients import (
    PARTITIONS,
    WAIT_S,
    Client,
    Committed,
    LibrdkafkaReading,
    LibrdkafkaWriting,
    OttlaReading,
    OttlaWriting,
    Transactions,
    Writing,
)
from testbench.soak.reading import Reader
from testbench.trio import SETTINGS, Trio

NUMBERS: Final = "numbers"
PAIRS: Final = "pairs"
GROUP: Final = "readers"
INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
CONFIGS: Final = {"retention.ms": "86400000", "max.message.bytes": "500000", "segment.bytes": "1048576"}
"""Settings of topics, which differ from the defaults."""
_OWN: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    # A broker that is not killed must keep its session, also on a busy machine.
    "zookeeper.session.timeout.ms": "6000",
}


VERSION_KEY: Final = "inter.broker.protocol.version"
FORMAT_KEY: Final = "log.message.format.version"
OLD_VERSION: Final = "2.7"
NEW_VERSION: Final = "3.9"
"""Followers use another version of Fetch. Under a version below 2.7 followers of release 0.1 may stop when the leader's
epoch changes, until the next change."""


class RollError(Exception):
    """The cluster or a client does not continue, or a broker is not the one that was started."""


class Roll:
    """A running cluster of release 0.1 with clients, and its way to today's release and back."""

    def __init__(
        self, cluster: Trio, directory: Path, rate: float, copiers: Sequence[str], say: Callable[[str], None]
    ) -> None:
        """`rate`: records a second of each of the two producers. `copiers`: libraries that copy exactly once."""
        self.cluster = cluster
        self.servers = [each for each in cluster.brokers if isinstance(each, OttlaServer)]
        self.old = release_source()
        self.killed = 0
        self._say = say
        self._began = time.monotonic()
        where = cluster.bootstrap
        # The client of Ottla is that of release 0.1, the other ones are as new as they are here.
        self.copiers = [Copier(each, directory / "copiers", where, NUMBERS, self.old) for each in copiers]
        self.topics = {NUMBERS: PARTITIONS, PAIRS: 2, **{each.target: PARTITIONS for each in self.copiers}}
        self._create_topics()
        self.configs = self._read_configs()
        self.seen: dict[tuple[int, int], bytes] = {}
        self.writers: list[Writing] = [
            LibrdkafkaWriting(where, NUMBERS, rate),
            OttlaWriting(where, NUMBERS, rate),
        ]
        self.transactions = Transactions(where, PAIRS, rate / 5)  # ten numbers each
        self.readers = [
            LibrdkafkaReading("reader-librdkafka", where, NUMBERS, GROUP, self.seen),
            OttlaReading("reader-ottla", where, NUMBERS, GROUP, self.seen),
        ]
        self.committed = Committed(where, NUMBERS, [GROUP, *(each.group for each in self.copiers)])
        self.clients: list[Client] = [*self.writers, self.transactions, *self.readers, self.committed]
        for client in self.clients:
            client.start()

    def _create_topics(self) -> None:
        wanted = [NewTopic(name, count, 3, config=CONFIGS) for name, count in self.topics.items()]
        for made in self.cluster.admin.create_topics(wanted, operation_timeout=30).values():
            made.result(60)

    def _read_configs(self) -> dict[str, object]:
        nodes = self.cluster.znodes()
        return {name: json.loads(nodes[f"/config/topics/{name}"].data)["config"] for name in self.topics}

    # -- the way ---------------------------------------------------------------------------------------------------

    def replace_all(self, source: Path | None, settings: dict[str, str], rng: random.Random | None) -> None:
        """Replace every broker in turn. `rng`: in any order, and with kills. Raises RollError, NodeError."""
        for server in self.servers if rng is None else rng.sample(self.servers, len(self.servers)):
            self.replace(server, source, settings, kill=rng is not None and rng.random() < 0.3)
            if rng is not None and rng.random() < 0.5:
                self._kill_one(rng)
        self._check_configs()

    def replace(self, server: OttlaServer, source: Path | None, settings: dict[str, str], *, kill: bool) -> None:
        """Stop a broker, and start it as another release with other settings. Raises RollError, NodeError."""
        server.kill() if kill else server.stop(WAIT_S)
        self.await_progress()
        server.source = source
        server.configure(settings)
        server.start(WAIT_S)
        self._say_event(f"broker {server.id} {'killed' if kill else 'stopped'}, started as {_name(source)} {settings}")
        self.await_whole()
        self._check_release(server)
        self.await_progress()

    def _kill_one(self, rng: random.Random) -> None:
        """Kill a broker of either release, and start it as it was."""
        server = rng.choice(self.servers)
        server.kill()
        self.killed += 1
        self.await_progress()
        server.start(WAIT_S)
        self._say_event(f"broker {server.id} killed, started again as {_name(server.source)}")
        self.await_whole()
        self.await_progress()

    def _check_release(self, server: OttlaServer) -> None:
        """Today's release registers its features, release 0.1 has none."""
        found = json.loads(self.cluster.znodes()[f"/brokers/ids/{server.id}"].data).get("features")
        if bool(found) == (server.source is not None):
            raise RollError(f"broker {server.id} runs another release than {_name(server.source)}: features {found}")

    def _check_configs(self) -> None:
        if (found := self._read_configs()) != self.configs:
            raise RollError(f"the settings of topics were {self.configs}, and are {found}")

    def await_whole(self) -> None:
        """Wait until all replicas are in sync."""
        self.cluster.wait_whole(*self.topics, *INTERNAL)

    def await_progress(self) -> None:
        """Wait until each client has succeeded with something that it began from now on. Raises RollError."""
        goals = {client: client.goal() for client in self.clients}
        deadline = time.monotonic() + WAIT_S
        while behind := [client for client, goal in goals.items() if client.reached() < goal]:
            for copier in self.copiers:
                copier.keep_running()
            self._raise_errors()
            if time.monotonic() > deadline:
                stuck = {client.name: (client.reached(), goals[client]) for client in behind}
                raise RollError(f"no progress within {WAIT_S} s: {stuck}; {self._copier_errors()}")
            time.sleep(0.02)

    def _raise_errors(self) -> None:
        if errors := [error for client in self.clients for error in client.errors]:
            raise RollError("; ".join(errors[:5]))

    def _copier_errors(self) -> str:
        return "; ".join(f"{each.library}, {each.starts} starts: {each.tail()}" for each in self.copiers)

    def _say_event(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began:7.1f}  {text}")

    def five_steps(self, rng: random.Random) -> None:
        """Kafka's upgrade, and the way back: the version between brokers is kept, brokers are replaced, it is raised,
        the format of messages is raised; clients of both releases work all the time."""
        kept = {VERSION_KEY: OLD_VERSION, FORMAT_KEY: OLD_VERSION}
        raised = {VERSION_KEY: NEW_VERSION, FORMAT_KEY: OLD_VERSION}
        for source, settings in (
            (self.old, kept),  # 1. the versions are written down, with the old release
            (None, kept),  # 2. the new release
            (None, raised),  # 3. and 4. the new version between brokers, by another roll
            (None, {VERSION_KEY: NEW_VERSION, FORMAT_KEY: NEW_VERSION}),  # 5. the new format
            (None, kept),  # back: first the versions, then the release
            (self.old, kept),
        ):
            self.replace_all(source, settings, rng)

    # -- the verdict -----------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, int]:
        """End the clients and check everything. Returns counts. Raises AssertionError, RollError."""
        for client in (*self.writers, self.transactions):
            client.finish()
        self._raise_errors()
        numbers = self._read(NUMBERS)
        self._check_numbers(numbers)
        self._await_readers(numbers)
        for copier in self.copiers:
            copier.end(WAIT_S)
            copied = self._read(copier.target)
            assert _values(copied) == _values(numbers), f"{copier.library}: {_difference(numbers, copied)}"
        self._check_pairs()
        self._check_configs()
        self._raise_errors()
        assert not self.cluster.complaints()
        return {
            "records": sum(map(len, numbers.values())),
            "transactions": self.transactions.reached() // 10,
            "kills": self.killed,
            "starts of copiers": sum(each.starts for each in self.copiers),
        }

    def _read(self, topic: str) -> dict[int, list[tuple[int, bytes]]]:
        """The committed records of a topic by partition: offset and value."""
        found: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(self.topics[topic])}
        isolation = {"isolation.level": "read_committed"}
        for each in Reader(self.cluster.bootstrap, topic, self.topics[topic], **isolation).rest():
            found[each.partition()].append((each.offset(), each.value()))
        return found

    def _check_numbers(self, numbers: dict[int, list[tuple[int, bytes]]]) -> None:
        """Every acknowledged record is there once, and all are in order."""
        for writer in self.writers:
            prefix = f"{writer.name}:".encode()
            for partition, records in numbers.items():
                own = [int(value.rpartition(b":")[2]) for _, value in records if value.startswith(prefix)]
                due = {each for each in writer.acknowledged if each % PARTITIONS == partition}
                assert own == sorted(set(own)), f"{writer.name}, partition {partition}: twice, or out of order"
                assert due <= set(own), f"{writer.name}, partition {partition}: lost {sorted(due - set(own))[:5]}"

    def _await_readers(self, numbers: dict[int, list[tuple[int, bytes]]]) -> None:
        """All groups commit the ends, and the members of one have seen every record."""
        ends = [numbers[index][-1][0] + 1 if numbers[index] else 0 for index in sorted(numbers)]
        for group in self.committed.offsets:
            if not self.committed.wait_for(group, ends):
                at = self.committed.offsets[group]
                raise RollError(f"{group} is at {at} of {ends}; {self._copier_errors()}")
        for client in (*self.readers, self.committed):
            client.finish()
        log = {(index, offset): value for index, records in numbers.items() for offset, value in records}
        assert self.seen == log, f"{GROUP} read {len(self.seen)} records of {len(log)}"

    def _check_pairs(self) -> None:
        """Every committed transaction is there once in both partitions, in order, and no aborted one."""
        due = [b"%d" % number for number in range(self.transactions.reached())]
        for partition, records in self._read(PAIRS).items():
            found = [value for _, value in records]
            assert found == due, f"{PAIRS}-{partition}: {len(found)} committed records, {len(due)} were due"


def _name(source: Path | None) -> str:
    return "today's release" if source is None else source.parent.name


def _values(records: dict[int, list[tuple[int, bytes]]]) -> dict[int, list[bytes]]:
    return {index: [value for _, value in each] for index, each in records.items()}


def _difference(wanted: dict[int, list[tuple[int, bytes]]], found: dict[int, list[tuple[int, bytes]]]) -> str:
    counts = {index: (len(wanted[index]), len(found[index])) for index in wanted}
    missing = {index: sorted(set(_values(wanted)[index]) - set(_values(found)[index]))[:5] for index in wanted}
    return f"wanted and found by partition {counts}, missing {missing}"


@contextlib.contextmanager
def rolling(
    directory: Path,
    store: str,
    *,
    rate: float = 10,
    copiers: Sequence[str] = ("ottla",),
    say: Callable[[str], None] = print,
) -> Iterator[Roll]:
    """Three brokers of release 0.1 and clients; all end at the end. Raises ReleaseError, BenchError, NodeError.

    `store`: `host:port/path` of ZooKeeper, where nothing is yet."""
    old = release_source()
    with contextlib.ExitStack() as stack:
        brokers = OttlaOnZooKeeper(directory, store, settings={**SETTINGS, **_OWN})
        stack.callback(brokers.stop)
        for server in brokers.brokers:
            server.source = old
        brokers.start()
        cluster = Trio(brokers.bootstrap, list(brokers.brokers), store, directory)
        roll = Roll(cluster, directory, rate, copiers, say)
        stack.callback(_end_clients, roll)
        roll.await_progress()
        for server in roll.servers:
            roll._check_release(server)
        yield roll


def _end_clients(roll: Roll) -> None:
    for client in roll.clients:
        client.ending.set()
    for copier in roll.copiers:
        copier.kill()
