"""Garbage collections walk few objects, however large the heap is, and long-lived objects leave no cycles.

Zone: real.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def run(script: str, *words: str) -> None:
    """Run in a process of its own, because all objects of the process count."""
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=180, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr + done.stdout


WALKED = """
import gc
from ottla.server.loop.garbage_collection import ROUNDS, YOUNG, GarbageCollection

walked = []
def note(phase, info):
    if phase == "start":
        walked.append(sum(len(gc.get_objects(generation=each)) for each in range(info["generation"] + 1)))

garbage = GarbageCollection()
garbage.start_managing()
gc.callbacks.append(note)
heap = []
for _ in range(500_000):  # the state of a broker that grows
    heap.append([heap])
for _ in range(3):
    garbage.collect_recent()
assert len(walked) > 10, "Python collects by itself as well"
assert max(walked) < (ROUNDS + 2) * 1.2 * YOUNG, max(walked)
assert max(walked[-2:]) < 100, "what has not changed is not walked again"

class Node: pass
node = Node()
node.itself = node
del node
before = sum(each["collected"] for each in gc.get_stats())
garbage.collect_recent()
assert sum(each["collected"] for each in gc.get_stats()) > before, "what is garbage is found"
assert garbage.longest_s > 0
garbage.stop_managing()
assert garbage._on_collection not in gc.callbacks
"""

CYCLES = """
import gc, os, socket, struct, sys, time
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType
from ottla.server.embedded import EmbeddedBroker

DATA = sys.argv[1]
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.delete.delay.ms": "100",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}

def use(broker, name):
    address = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(address)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(180)
    admin.create_partitions([NewPartitions(name, 2)])[name].result(180)
    setting = ConfigResource(ResourceType.TOPIC, name, set_config={"retention.ms": "77777"})
    admin.alter_configs([setting])[setting].result(180)
    refused = admin.create_topics([NewTopic(name, 1, 1)])[name].exception(180)
    assert refused is not None
    producer = Producer({**address, "transactional.id": name})
    producer.init_transactions(30)
    for commit in (True, False):
        producer.begin_transaction()
        producer.produce(name, b"1")
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    consumer = Consumer({**address, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    for _ in range(100):
        if consumer.poll(0.2) is not None:
            break
    else:
        raise AssertionError("no record")
    consumer.commit(asynchronous=False)
    consumer.close()
    admin.delete_consumer_groups([name])[name].result(180)
    host, port = broker.bootstrap.split(":")
    # A Fetch of what is no broker: its connection is closed while it is handled.
    replica = struct.pack(">ihhihiiiii", 30, 1, 0, 7, -1, 1, 0, 0, 0, 0)
    for request in (struct.pack(">ihhih", 10, 18, 0, 7, -1), b"GET / HTTP/1.1\\r\\n\\r\\n", replica):
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(request)
            sock.recv(8)
    for gone in admin.delete_topics([name, "__consumer_offsets", "__transaction_state"]).values():
        gone.result(180)  # with the coordinators of the internal ones
    while any(each.startswith(name) or each.endswith("-delete") for each in os.listdir(DATA)):
        time.sleep(0.01)  # logs are deleted later
    admin.list_topics(timeout=30)

with EmbeddedBroker(DATA, SETTINGS) as broker:
    use(broker, "first")  # makes what is made once
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    use(broker, "second")
    gc.collect()
    gc.set_debug(0)
    names = [f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage]
    names += [f"{each.__module__}.{each.__qualname__}" for each in gc.garbage if hasattr(each, "__code__")]
    gc.garbage.clear()
    assert not [name for name in names if name.startswith("ottla.")], names
"""


STREAMS = """
import gc, random, sys, time
from collections import Counter
from bench.fuzz import grammar
from bench.fuzz_stream import Stream
from ottla.server.embedded import EmbeddedBroker
from ottla.server.loop.garbage_collection import GarbageCollection
from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode
from ottla.wire.messages import ApiVersionsResponse
import socket, struct

def served(port):
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        size = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))[0]
        answer, _ = decode(ApiVersionsResponse, 0, memoryview(sock.recv(size, socket.MSG_WAITALL)), 4)
    return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

with EmbeddedBroker(config={"file.delete.delay.ms": "100", "offsets.topic.num.partitions": "2"}) as broker:
    port = int(broker.bootstrap.split(":")[1])
    offered = served(port)
    garbage = GarbageCollection()
    garbage.start_managing()
    stream = Stream(random.Random(7), grammar(), [port], offered)
    while stream.requests < 8_000:
        stream.round()
    time.sleep(1)
    garbage.collect_recent()
    gc.disable()
    gc.unfreeze()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
    gc.garbage.clear()
    left = {name: count for name, count in kinds.items() if name.startswith("ottla.")}
    assert not left, sorted(left.items(), key=lambda item: -item[1])[:20]
"""


def test_a_collection_walks_what_was_made_since_the_last_one() -> None:
    run(WALKED)


def test_topics_groups_transactions_and_connections_that_go_leave_no_cycles(tmp_path: Path) -> None:
    run(CYCLES, str(tmp_path))


def test_nothing_that_survives_a_collection_dies_in_a_cycle_whatever_is_asked() -> None:
    """Extreme requests of all kinds; a collection may come at any moment while they are held or refused."""
    run(STREAMS)
