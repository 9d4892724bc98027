"""The environment of a chaos run: hosts, disks, a cluster on them, and its state as clients see it.

Zone: real. Other modules choose the faults.

Engines: `embedded` is `ottla up` on one host; `zookeeper` is three Ottla brokers and a ZooKeeper ensemble, six hosts;
`secured` is the same with TLS, SCRAM and ACLs, between brokers too, and a digest at ZooKeeper; `kafka` is three Apache
Kafka nodes, to try the harness itself. Host 0 always has the clients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from testbench.apache_kafka.cluster import KafkaCluster
from testbench.chaos.secured import BROKER_USER, SecurityFiles
from testbench.cluster import Broker, OttlaOnZooKeeper, OttlaUp
from testbench.disk import Volume
from testbench.network import Host, Network
from testbench.process import COMPLAINT, ManagedProcess
from testbench.zookeeper import ZooKeeper

ENGINES = ("embedded", "zookeeper", "secured", "kafka")
BROKERS = 3
DISK_MIB = 4096
SESSION_MS = 2_000
OTTLA_SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "replica.lag.time.max.ms": "3000",
    "log.segment.bytes": str(16 << 20),
}
KAFKA_SETTINGS = {
    "broker.session.timeout.ms": "2500",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "log.segment.bytes": str(16 << 20),
}


class View(NamedTuple):
    """The state of the cluster according to Metadata."""

    brokers: frozenset[int]
    controller: int | None
    leaders: dict[int, int]
    """Partition of the topic → leader; -1 for none."""
    in_sync: dict[int, frozenset[int]]

    @property
    def whole(self) -> bool:
        """Whether all brokers are registered, and every partition has a leader and all its replicas in sync."""
        return len(self.brokers) == BROKERS and all(
            leader >= 0 and len(self.in_sync[partition]) == BROKERS for partition, leader in self.leaders.items()
        )

    def __str__(self) -> str:
        rows = " ".join(f"{index}:{self.leaders[index]}/{sorted(self.in_sync[index])}" for index in self.leaders)
        return f"brokers {sorted(self.brokers)}, controller {self.controller}, partition:leader/ISR {rows}"


class Arena:
    """A context manager, which creates everything at its start, and removes it at any end."""

    def __init__(
        self, engine: str, directory: Path, settings: dict[str, str] | None = None, *, spare: bool = False
    ) -> None:
        """`spare`: brokers of `zookeeper` have two disks, and a log directory on each."""
        assert engine == "zookeeper" or not spare
        self.engine = engine
        self.security: SecurityFiles | None = None
        self.directory = directory
        self.network: Network
        self.disks: list[Volume] = []
        self.spares: list[Volume] = []
        self.brokers: list[Broker] = []
        self.stores: list[ManagedProcess] = []
        """ZooKeeper's servers, or the supervisor; empty for Apache Kafka."""
        self.bootstrap = ""
        self._settings = settings or {}
        self._spare = spare
        self._closing = contextlib.ExitStack()
        self._more: list[Path] = []
        self._admin: AdminClient | None = None

    def __enter__(self) -> Arena:
        with contextlib.ExitStack() as stack:
            self.network = stack.enter_context(Network(1))
            self.client = self.network.hosts[0]
            data = [self._disk(stack, index, "disk", self.disks) for index in range(BROKERS)]
            if self._spare:
                self._more = [self._disk(stack, index, "spare", self.spares) for index in range(BROKERS)]
            start = {
                "embedded": self._embedded,
                "zookeeper": self._zookeeper,
                "secured": self._zookeeper,
                "kafka": self._kafka,
            }[self.engine]
            start(stack, data)
            stack.enter_context(self.client.entered())
            login = self.security.librdkafka(BROKER_USER) if self.security else {}
            where = {"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 3_000}
            self._admin = AdminClient(where | login)
            self._closing = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()

    def _disk(self, stack: contextlib.ExitStack, index: int, name: str, volumes: list[Volume]) -> Path:
        """A separate file system for each broker, ext4 and xfs in turn."""
        volume = Volume(self.directory / f"{name}-{index + 1}", ("ext4", "xfs")[index % 2], DISK_MIB)
        stack.callback(volume.remove)
        volumes.append(volume)
        data = volume.path / "data"  # ext4 has a lost+found in its root
        data.mkdir()
        return data

    def _hosts(self, count: int) -> list[Host]:
        return [self.network.add() for _ in range(count)]

    def _embedded(self, stack: contextlib.ExitStack, data: list[Path]) -> None:
        (host,) = self._hosts(1)
        up = OttlaUp(self.directory / "up", BROKERS, settings=OTTLA_SETTINGS | self._settings, host=host)
        up.directory.mkdir()
        for broker, place in zip(up.brokers, data, strict=True):
            broker.data.symlink_to(place)
        stack.callback(up.kill_all)
        with self.client.entered():
            up.start()
        self.brokers, self.stores, self.bootstrap = list(up.brokers), [up], up.bootstrap

    def _zookeeper(self, stack: contextlib.ExitStack, data: list[Path]) -> None:
        broker_hosts, store_hosts = self._hosts(BROKERS), self._hosts(3)
        ensemble = ZooKeeper(
            self.directory / "zookeeper",
            3,
            addresses=[host.address for host in store_hosts],
            prefixes=[host.prefix for host in store_hosts],
        )
        stack.callback(ensemble.kill)
        settings = OTTLA_SETTINGS | self._settings
        with self.client.entered():
            ensemble.start()
            connect = ensemble.chroot("/chaos")
            cluster = OttlaOnZooKeeper(
                self.directory / "brokers",
                connect,
                BROKERS,
                settings=settings,
                hosts=broker_hosts,
                data=data,
                more=self._more,
            )
            stack.callback(cluster.stop)
            if self.engine == "secured":
                self.security = SecurityFiles(self.directory / "secured", [host.address for host in broker_hosts])
                for broker in cluster.brokers:
                    broker.configure(self.security.broker_settings(broker.bootstrap))
            cluster.start()
        self.brokers, self.stores, self.bootstrap = list(cluster.brokers), list(ensemble.servers), cluster.bootstrap

    def _kafka(self, stack: contextlib.ExitStack, data: list[Path]) -> None:
        settings = KAFKA_SETTINGS | self._settings
        cluster = KafkaCluster(
            self.directory / "kafka", BROKERS, settings=settings, hosts=self._hosts(BROKERS), data=data
        )
        stack.callback(cluster.stop)
        with self.client.entered():
            cluster.start()
        self.brokers, self.bootstrap = list(cluster.brokers), cluster.bootstrap

    @property
    def supervisor(self) -> OttlaUp:
        """The one of `embedded`."""
        (up,) = self.stores
        assert isinstance(up, OttlaUp)
        return up

    @property
    def broker_hosts(self) -> list[Host]:
        """One per broker; one for all of them when they share a machine."""
        return self.network.hosts[1:2] if self.engine == "embedded" else self.network.hosts[1 : 1 + BROKERS]

    @property
    def store_hosts(self) -> list[Host]:
        """One per ZooKeeper server."""
        return self.network.hosts[1 + BROKERS :] if self.engine in ("zookeeper", "secured") else []

    def data_of(self, index: int) -> list[Path]:
        """The log directories of a broker."""
        return [self.brokers[index].data, *self._more[index : index + 1]]

    def create_topic(self, name: str, partitions: int) -> None:
        """Create the topic, with three replicas and min.insync.replicas=2. Clients may use it, as group of its name."""
        assert self._admin is not None
        if self.security is not None:
            self.security.create_client_user(self.bootstrap, name, name)
        topic = NewTopic(name, partitions, BROKERS, config={"min.insync.replicas": "2"})
        self._admin.create_topics([topic], operation_timeout=30)[name].result(60)

    def elect_preferred(self) -> None:
        """Make the first replica of every partition its leader again."""
        assert self._admin is not None
        self._admin.elect_leaders(ElectionType.PREFERRED, None).result(60)

    def look(self, topic: str, wait_s: float = 3) -> View | None:
        """The state of the cluster according to any broker; None when none answers."""
        assert self._admin is not None
        try:
            seen = self._admin.list_topics(topic, timeout=wait_s)
        except KafkaException:
            return None
        partitions = seen.topics[topic].partitions
        return View(
            frozenset(seen.brokers),
            seen.controller_id if seen.controller_id >= 0 else None,
            {index: partition.leader for index, partition in sorted(partitions.items())},
            {index: frozenset(partition.isrs) for index, partition in partitions.items()},
        )

    def complaints(self) -> Iterator[str]:
        """Tracebacks, passwords and other forbidden lines in the logs of Ottla's servers."""
        if self.engine == "kafka":
            return
        for log in sorted({*self.directory.glob("up/**/*.log"), *self.directory.glob("brokers/*.log")}):
            if "disk-" in str(log.resolve()) or not log.is_file():
                continue
            for number, line in enumerate(log.read_text(errors="replace").splitlines(), start=1):
                if COMPLAINT.search(line) or (self.security is not None and self.security.contains_password(line)):
                    yield f"{log.relative_to(self.directory)}:{number}: {line}"
