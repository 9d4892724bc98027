"""Connections that do nothing, and readers that do not read: memory is bounded, and others are served meanwhile.

`EXPLORE=1` takes 10,000 and 100 of them, CI some.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench.hostile_cases import request
from testbench.clients import Confluent, Record

from ottla.wire.apis import ApiKey
from ottla.wire.codec import encode_bytes
from ottla.wire.messages import FetchRequest

pytestmark = [pytest.mark.slow, pytest.mark.interop]

IDLE, SLOW = (10_000, 100) if "EXPLORE" in os.environ else (600, 30)
MIB = 1 << 20


def memory(pid: int) -> int:
    """Bytes of a process that are resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def fetch(topic: str) -> bytes:
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
    wanted = [FetchRequest.FetchTopic(topic=topic, partitions=[part])]
    message = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 * MIB, topics=wanted, session_epoch=-1)
    return request(ApiKey.FETCH, 11, encode_bytes(message, 11))


def test_idle_connections_and_slow_readers(node) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    broker = node()
    broker.start()
    Confluent().write(broker.bootstrap, "big", [Record(None, os.urandom(10_000)) for _ in range(4_000)])
    before = memory(broker.pid)
    with ExitStack() as others:
        for _ in range(IDLE):
            others.enter_context(socket.create_connection(("127.0.0.1", broker.port), 60))
        for _ in range(SLOW):
            slow = others.enter_context(socket.create_connection(("127.0.0.1", broker.port), 60))
            slow.sendall(20 * fetch("big"))
        waits = []
        for number in range(50):
            began = time.monotonic()
            Confluent().write(broker.bootstrap, "other", [Record(None, b"%d" % number)])
            waits.append(time.monotonic() - began)
        grown = memory(broker.pid) - before
        assert len(Confluent().read(broker.bootstrap, "other")) == 50
    assert grown < 32 * MIB + IDLE * 16_384, f"{grown / MIB:.0f} MiB for {IDLE} idle connections, {SLOW} slow readers"
    assert sorted(waits)[25] < 1, waits
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    broker.stop()
