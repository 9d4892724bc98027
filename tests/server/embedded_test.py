"""A broker that runs inside this process.

Zone: real.
"""

from __future__ import annotations

import os
import socket
import struct

import pytest

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, Producer
from ottla.seams import Failure
from ottla.server.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def ask(bootstrap: str) -> bytes:
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=180) as sock:
        sock.sendall(API_VERSIONS)
        return sock.recv(8)[4:]


def test_it_answers_until_the_end_of_the_block_and_leaves_nothing():
    with EmbeddedBroker() as broker:
        assert ask(broker.bootstrap) == struct.pack(">i", 7)
        directory = broker._temporary
        assert os.path.isdir(directory)
    with pytest.raises(OSError, match="refused"):
        ask(broker.bootstrap)
    assert not os.path.exists(directory)
    broker.stop()


def test_several_live_side_by_side():
    with EmbeddedBroker() as one, EmbeddedBroker() as two:
        assert one.bootstrap != two.bootstrap
        assert ask(one.bootstrap) == ask(two.bootstrap)


def test_data_of_ones_own_stays(tmp_path):
    with EmbeddedBroker(str(tmp_path)) as broker:
        ask(broker.bootstrap)
    assert (tmp_path / "meta.properties").exists()
    with EmbeddedBroker(str(tmp_path)) as broker:
        ask(broker.bootstrap)


def test_a_start_that_fails_raises(tmp_path):
    with (
        EmbeddedBroker(str(tmp_path)),
        pytest.raises(Failure, match="in use"),
        EmbeddedBroker(str(tmp_path)),
    ):
        raise AssertionError("two brokers on one directory")


def test_a_guest_keeps_few_files_open():
    """Otherwise `select` in the host program may get a descriptor above 1,023."""

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before, partitions = count(), 256
    with EmbeddedBroker() as broker:
        settings = {"bootstrap.servers": broker.bootstrap}
        with Cluster(ClientConfig.from_mapping(settings)) as cluster:
            Admin(cluster).create_topics([NewTopic("wide", partitions, 1)])
        with Producer(settings) as producer:
            sent = [producer.send("wide", b"%d" % n, partition=n) for n in range(partitions)]
            assert [each.result(180).offset for each in sent] == [0] * partitions
            assert count() - before < 200
