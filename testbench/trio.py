"""Three Ottla brokers by either engine on 127.0.0.1, their metadata store open to any ZooKeeper client.

Zone: real. Shared by tests of whole clusters: starts one, reads its store and its Metadata.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from testbench.cluster import Broker, OttlaOnZooKeeper, OttlaUp
from testbench.process import COMPLAINT, NodeError
from testbench.zookeeper import ZooKeeper

ENGINES = ("embedded", "zookeeper")
SESSION_MS = 2_000
SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "replica.lag.time.max.ms": "3000",
    # A leader moves when a test moves it: the controller's rebalance, every 300 s, would move it between two steps.
    "auto.leader.rebalance.enable": "false",
}
WAIT_S = 180


class Znode(NamedTuple):
    """The data of a node, and its version."""

    data: bytes
    version: int
    owner: int
    """The session of an ephemeral node; 0 for others."""


class Trio:
    """A running cluster."""

    def __init__(
        self, bootstrap: str, brokers: list[Broker], store: str, directory: Path, digest: str | None = None
    ) -> None:
        self.brokers = brokers
        """Broker N is at index N - 1."""
        self.store = store
        """`host:port[/chroot]` of the metadata store."""
        self.digest = digest
        """The credentials of clients of the store, where they need some."""
        self._directory = directory
        self.admin: AdminClient
        self.connect(bootstrap)

    def connect(self, bootstrap: str, settings: dict[str, str] | None = None) -> None:
        """Use these listeners, with librdkafka's settings of a login."""
        self.bootstrap = bootstrap
        common = {"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 5_000}
        self.admin = AdminClient({**common, **(settings or {})})

    @contextlib.contextmanager
    def zookeeper(self) -> Iterator[KazooClient]:
        """A ZooKeeper client of the store."""
        client = KazooClient(self.store, auth_data=[("digest", self.digest)] if self.digest else [])
        client.start(20)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def znodes(self) -> dict[str, Znode]:
        """The whole tree of the store."""
        with self.zookeeper() as client:
            found: dict[str, Znode] = {}
            _walk(client, "/", found)
            return found

    def metadata(self, wait_s: float = 5) -> ClusterMetadata | None:
        """Metadata of any broker; None when none answers."""
        try:
            return self.admin.list_topics(timeout=wait_s)
        except KafkaException:
            return None

    def wait_until(self, what: str, true: Callable[[ClusterMetadata], bool], wait_s: float = WAIT_S) -> ClusterMetadata:
        """Wait for metadata with a property, and return it. Raises AssertionError."""
        deadline = time.monotonic() + wait_s
        seen = None
        while time.monotonic() < deadline:
            seen = self.metadata()
            if seen is not None and true(seen):
                return seen
            time.sleep(0.05)
        raise AssertionError(f"not within {wait_s} s: {what}; metadata: {_shown(seen)}")

    def wait_whole(self, *topics: str) -> ClusterMetadata:
        """Wait until all brokers are registered, and these topics have all replicas in sync."""

        def whole(seen: ClusterMetadata) -> bool:
            return (
                len(seen.brokers) == len(self.brokers)
                and all(
                    each.leader > 0 and set(each.isrs) == set(each.replicas)
                    for topic in topics
                    for each in seen.topics[topic].partitions.values()
                )
                and all(topic in seen.topics for topic in topics)
            )

        return self.wait_until(f"all replicas of {topics} in sync", whole)

    def coordinator_of(self, group: str) -> int:
        """The broker that coordinates a group: the leader of the partition that Java's hash of its name falls into.

        Found through metadata, because librdkafka's admin client keeps asking a former coordinator.
        """
        number = 0
        for character in group:
            number = (31 * number + ord(character)) & 0xFFFFFFFF
        number = number - (1 << 32) if number >> 31 else number
        partitions = self.wait_whole("__consumer_offsets").topics["__consumer_offsets"].partitions
        return int(partitions[abs(number) % len(partitions)].leader)

    def complaints(self) -> list[str]:
        """Tracebacks and the like in the logs of all processes."""
        return [
            f"{log.name}:{number}: {line}"
            for log in sorted(self._directory.glob("*.log"))
            for number, line in enumerate(log.read_text(errors="replace").splitlines(), start=1)
            if COMPLAINT.search(line)
        ]


def _walk(client: KazooClient, path: str, found: dict[str, Znode]) -> None:
    try:
        data, stat = client.get(path)
        children = client.get_children(path)
    except NoNodeError:
        return
    found[path] = Znode(data or b"", stat.version, stat.ephemeralOwner)
    for child in sorted(children):
        _walk(client, f"{path.rstrip('/')}/{child}", found)


def _shown(seen: ClusterMetadata | None) -> Any:
    if seen is None:
        return "none"
    topics = {
        name: {index: (each.leader, each.replicas, each.isrs) for index, each in topic.partitions.items()}
        for name, topic in seen.topics.items()
    }
    return json.dumps({"brokers": sorted(seen.brokers), "controller": seen.controller_id, "topics": topics})


def _up(directory: Path, settings: dict[str, str]) -> OttlaUp:
    """Start `ottla up`, and retry when a port that was free before is taken by now."""
    for attempt in range(3):
        up = OttlaUp(directory / f"up{attempt}" if attempt else directory, settings=settings)
        try:
            up.start()
            return up
        except NodeError as error:
            up.kill_all()
            if "Address already in use" not in str(error) or attempt == 2:
                raise
    raise AssertionError("the loop ends by returning or raising")


@contextlib.contextmanager
def trio(engine: str, directory: Path, settings: dict[str, str] | None = None) -> Iterator[Trio]:
    """Start three brokers; kill them at the end."""
    own = SETTINGS | (settings or {})
    with contextlib.ExitStack() as stack:
        if engine == "embedded":
            up = _up(directory, own)
            stack.callback(up.kill_all)
            yield Trio(up.bootstrap, list(up.brokers), up.store, up.directory.parent, up.digest)
        else:
            ensemble = stack.enter_context(ZooKeeper(directory / "zookeeper", 1))
            store = ensemble.chroot("/ottla")
            cluster = OttlaOnZooKeeper(directory, store, settings=own)
            stack.callback(cluster.stop)
            cluster.start()
            yield Trio(cluster.bootstrap, list(cluster.brokers), store, directory)
