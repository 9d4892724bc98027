"""The brokers of a data directory, their configurations, and their state in the store.

Zone: pure.
"""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig
from ottla.server.supervisor.local_cluster_spec import (
    InvalidClusterSpec,
    Layout,
    LocalClusterSpec,
    StoreSpec,
    brokers_of,
    controller_of,
    layout_of,
    properties_of,
    session_of,
    under_replicated,
)
from ottla.znodes.tree import Change, Tree, Verb


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        ([], Layout([], False)),
        (["broker-10", "broker-2", "__znodes-0", "pid"], Layout([2, 10], False)),
        (["broker-x", "broker-", "abroker-1"], Layout([], False)),
        (["meta.properties", "__znodes-0"], Layout([], True)),
    ],
)
def test_a_directory_tells_what_it_holds(names, layout):
    assert layout_of(names) == layout


@pytest.mark.parametrize(
    ("count", "there", "brokers"),
    [(3, [], [1, 2, 3]), (3, [1, 2, 3], [1, 2, 3]), (3, [2], [1, 2, 3]), (4, [7, 1], [1, 2, 3, 7]), (1, [5], [5])],
)
def test_brokers_that_have_a_directory_come_first(count, there, brokers):
    assert brokers_of(count, Layout(there, False), "data") == brokers


def test_data_of_more_brokers_than_asked_for_is_not_left_behind():
    with pytest.raises(InvalidClusterSpec, match="data holds broker-1, broker-2: start all with --brokers 2"):
        brokers_of(1, Layout([1, 2], False), "data")


def test_data_of_a_broker_that_runs_alone_is_not_taken():
    with pytest.raises(InvalidClusterSpec, match="data of a single broker"):
        brokers_of(3, Layout([], True), "data")


def test_a_broker_has_its_own_port_and_the_shared_one_leads_to_it():
    fleet = LocalClusterSpec(
        "/data", "127.0.0.1", 9092, [1, 2, 3], {"log.retention.hours": "1", "min.insync.replicas": "1"}
    )
    config, warnings = BrokerConfig.from_properties(
        properties_of(fleet, 2, 9094, 9092, StoreSpec("127.0.0.1:5", "u:p"), "127.0.0.1")
    )
    assert warnings == []
    assert [(one.listener, one.port) for one in config.endpoints] == [
        ("PLAINTEXT", 9094),
        ("BOOTSTRAP", 9092),
        ("BROKERS", 0),
    ]
    assert [(one.listener, one.port) for one in config.advertised_endpoints or ()] == [
        ("PLAINTEXT", 9094),
        ("BOOTSTRAP", 9094),
        ("BROKERS", -1),
    ]
    assert config.inter_broker_listener == "BROKERS"
    assert config.ottla_zookeeper_digest == "u:p"
    assert (config.node_id, config.log_dirs, config.zookeeper_connect) == (2, ("/data/broker-2",), "127.0.0.1:5")
    assert (config.default_replication_factor, config.min_insync_replicas) == (3, 1)


def test_every_interface_is_told_by_name():
    fleet = LocalClusterSpec("/data", "::", 9092, [1], {})
    told = properties_of(fleet, 1, 9093, 9092, StoreSpec("x:1", "u:p"), "::1")
    assert told["listeners"] == "PLAINTEXT://[::]:9093,BOOTSTRAP://[::]:9092,BROKERS://127.0.0.1:0"
    assert told["advertised.listeners"] == ("PLAINTEXT://[::1]:9093,BOOTSTRAP://[::1]:9093,BROKERS://127.0.0.1:*")
    assert (told["default.replication.factor"], told["min.insync.replicas"]) == ("1", "1")


def test_keys_that_follow_from_the_place_are_refused():
    with pytest.raises(InvalidClusterSpec, match="--set listeners"):
        properties_of(
            LocalClusterSpec("/data", "h", 1, [1], {"listeners": "X://:1"}), 1, 2, 1, StoreSpec("x:1", "u:p"), "h"
        )


def test_every_broker_has_pages_of_its_own():
    def pages(listener: str, broker: int) -> str | None:
        fleet = LocalClusterSpec("/data", "h", 1, [1, 2], {"ottla.http.listener": listener})
        return properties_of(fleet, broker, 2, 1, StoreSpec("x:1", "u:p"), "h").get("ottla.http.listener")

    assert [pages("[::1]:9200", broker) for broker in (1, 2)] == ["[::1]:9201", "[::1]:9202"]
    assert pages(":0", 2) == ":0"
    with pytest.raises(InvalidClusterSpec, match="port 65535"):
        pages(":65535", 1)


class Nodes(Tree):
    """A tree that the test writes to without a store."""

    def put(self, path: str, data: bytes = b"", owner: int = 0) -> None:
        parent = ""
        for name in path[1:].split("/")[:-1]:
            parent += f"/{name}"
            if parent not in self.nodes:
                self.apply([Change(Verb.CREATE, parent)], 1, 0)
        if owner and owner not in self.ephemerals:
            self.apply([Change(Verb.OPEN, "", b"", owner)], 1, 0)
        self.apply([Change(Verb.CREATE, path, data, owner)], 1, 0)


def test_the_session_of_a_broker_is_the_owner_of_its_node():
    tree = Nodes()
    assert session_of(tree, 1) is None
    tree.put("/brokers/ids/1", b"{}", owner=77)
    tree.put("/brokers/ids/2", b"{}")
    assert [session_of(tree, broker) for broker in (1, 2, 3)] == [77, None, None]


def test_the_controller_is_who_its_node_names():
    tree = Nodes()
    assert controller_of(tree) is None
    tree.put("/controller", b'{"version":2,"brokerid":3,"timestamp":"1","kraftControllerEpoch":-1}')
    assert controller_of(tree) == 3


def test_partitions_that_lack_replicas_in_sync_are_named():
    tree = Nodes()
    assert under_replicated(tree) == []
    tree.put("/brokers/topics/t", b'{"partitions":{"0":[1,2],"1":[2,1],"2":[1],"3":[1,2]}}')
    tree.put("/brokers/topics/t/partitions/0/state", b'{"isr":[2,1]}')
    tree.put("/brokers/topics/t/partitions/1/state", b'{"isr":[2]}')
    tree.put("/brokers/topics/t/partitions/2/state", b"by hand")
    tree.put("/brokers/topics/broken", b"[]")
    tree.put("/brokers/topics/broken too", b'{"partitions":{"0":7}}')
    assert under_replicated(tree) == ["broken too-0", "t-1", "t-2", "t-3"]
