"""Text that is not UTF-8 in every field of every request: the broker answers and keeps running.

Zone: real.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from testbench.ottla_node import OttlaNode

from ottla.client import Admin, ClientConfig, Cluster, Consumer, NewTopic, Producer, TopicPartition, values_of
from ottla.client.admin.groups import GroupAdmin
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.schema import NUMBERS, StructType, struct_class

pytestmark = pytest.mark.slow
ODD = "caf\udce9"
BASE64 = {"base64": "Y2Fm6Q=="}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path_factory.mktemp("odd") / "data", {"group.initial.rebalance.delay.ms": "0"}) as made:
        yield made
        assert "Traceback" not in made.said()


def filled(cls: StructType, version: int, *, top: bool = True) -> Any:
    """A message whose texts are not UTF-8, and whose arrays have one element."""
    made = cls()
    for field in cls.FIELDS:
        if not field.exists_in(version):
            continue
        kind = field.type
        if kind == "array":
            of = field.of
            element = filled(struct_class(cls, field), version, top=False) if of == "struct" else _plain(of)
            setattr(made, field.name, [element])
        elif kind == "struct":
            setattr(made, field.name, filled(struct_class(cls, field), version, top=False))
        elif kind == "string":
            setattr(made, field.name, ODD)
    return made


def _plain(kind: str) -> Any:
    return ODD if kind == "string" else b"\1" * 16 if kind == "uuid" else 0 if kind in NUMBERS else b""


def ask(node: OttlaNode, key: int, version: int, body: bytes, wait_s: float = 0.5) -> bytes | None:
    """The answer; None if the connection was closed, or no answer came in time."""
    host, port = node.bootstrap.split(":")
    frame = encode_request_header(key, version, 1, ODD) + body
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        sock.settimeout(wait_s)
        with suppress(TimeoutError, ConnectionError):
            return sock.recv(65_536) or None
    return None


@pytest.mark.parametrize("key", sorted(API_TABLE), ids=lambda key: ApiKey(key).name)
def test_odd_text_in_every_request_is_answered_and_costs_nobody_anything(node: OttlaNode, key: int) -> None:
    api = API_TABLE[key]
    for version in {api.min_version, (api.min_version + api.max_version) // 2, api.max_version}:
        ask(node, key, version, encode_bytes(filled(api.request, version), version))
    assert ask(node, ApiKey.API_VERSIONS, 0, b"", 180) is not None, node.said()[-3000:]
    assert "Traceback" not in node.said(), node.said()[-3000:]


def ottla(node: OttlaNode, *words: str) -> str:
    """The output of the command line."""
    command = [sys.executable, "-m", "ottla", "-b", node.bootstrap, *words]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode()


def assert_shown(node: OttlaNode, group: str) -> None:
    """The text is readable, valid in JSON, and usable as an argument with its bytes."""
    assert group.replace("\udce9", "\ufffd") in ottla(node, "group", "list")
    (described,) = json.loads(ottla(node, "group", "describe", group, "-o", "json"))
    assert described["partitions"][0]["current_offset"] >= 1
    (line,) = ottla(node, "consume", "t", "--from-beginning", "--exit-at-end", "-o", "jsonl").splitlines()
    assert json.loads(line)["headers"] == [{"key": BASE64, "value": "1"}]


def test_groups_members_and_positions_with_odd_names_are_kept_over_a_restart(node: OttlaNode) -> None:
    config = ClientConfig(bootstrap_servers=node.bootstrap, client_id=ODD)
    group = f"group-{ODD}"
    with Cluster(config) as cluster:
        values_of(Admin(cluster).create_topics([NewTopic("t", 1)]))
        tp = TopicPartition("t", 0)
        with Producer({"bootstrap.servers": node.bootstrap, "client.id": ODD, "transactional.id": ODD}) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"v", headers={ODD: b"1"})
                producer.send_offsets_to_transaction({tp: 1}, f"txn-{ODD}")
        settings = {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "client.id": ODD,
            "auto.offset.reset": "earliest",
        }
        with Consumer(settings | {"group.instance.id": ODD}) as consumer:
            consumer.subscribe(["t"])
            found: list[Any] = []
            while not found:
                found = consumer.poll(1)
            assert found[0].headers == ((ODD, b"1"),)
            consumer.commit()
            assert tp in GroupAdmin(cluster).group_offsets(group)
        assert_shown(node, group)
    node.stop()
    node.start()
    with Consumer({"bootstrap.servers": node.bootstrap, "group.id": group}) as consumer:
        position = consumer.committed([TopicPartition("t", 0)])[TopicPartition("t", 0)]
        assert position is not None
        assert position.offset >= 1
    with Consumer({"bootstrap.servers": node.bootstrap, "group.id": f"txn-{ODD}"}) as consumer:
        position = consumer.committed([TopicPartition("t", 0)])[TopicPartition("t", 0)]
        assert position is not None
        assert position.offset == 1
