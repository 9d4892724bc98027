#!/usr/bin/env python3
"""Measure the effect of one hostile request on others: the latency of a small producer meanwhile, and memory.

    bench/hostile.py [--rows PATTERN] [--out DIR]

A broker is started, and for each row a victim in a separate process produces one small batch every 5 ms while another
connection sends the hostile request. Writes HOSTILE.md. Exit code 1 when a row is over its limit.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testbench.ottla_node import OttlaNode

from bench import filled_requests
from bench.hostile_rows import VICTIM, EncodedRequest, Hostile, array_rows, rows
from ottla.record import batch as batches
from ottla.wire import messages
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.schema import Message

HEAD = """# Results: hostile requests

Written by `bench/hostile.py`; do not edit. One broker; beside each request, from another connection, a victim in a
process of its own produces one small batch every 5 ms with acks=1. A request may hold the victim for {stall} ms at the
longest, and may take {bytes_per_byte} bytes of memory per byte of it and 1 MiB, answers included.

Machine: {machine}. Load average: {load}. Measured {when}. Victim alone: p99 {p99:.1f} ms, max {worst:.1f} ms.
Command: `{command}`
"""
STALLS = """
## How long others wait

| request | bytes | answer | after s | CPU s | victim p50 ms | p99 | max | limit | verdict |
|---|---|---|---|---|---|---|---|---|---|
"""
ARRAYS = """
## Each array of each request, as long as 1 MiB allows

"others": its elements name different things; "the same": all of them one topic of 500 partitions.

| request | bytes | answer | CPU s | victim max ms | limit | verdict | growth MiB | limit | verdict |
|---|---|---|---|---|---|---|---|---|---|
"""
MEMORY = """
## How much memory it takes

| request | bytes | peak growth MiB | limit MiB | verdict |
|---|---|---|---|---|
"""
STALL_MS = 50.0
FLOOD_P99_MS = {1: 5.0, 100: 50.0}
"""Connections that flood → the limit of the victim's p99."""
BYTES_PER_BYTE = 16
ALLOWANCE = 1 << 20
MIB = 1 << 20
FLOOD_S = 2.0
PATIENCE_S = 60
SETTINGS = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}


class Figures(NamedTuple):
    """Latencies of the victim, in ms."""

    p50: float
    p99: float
    worst: float


class Measured(NamedTuple):
    """One row of the tables."""

    title: str
    sent: int
    answered: str
    seconds: float
    cpu_s: float
    victim: Figures
    grown: int
    """Bytes that resident memory grew at its peak."""
    limit_ms: float
    judges_p99: bool

    @property
    def is_swift(self) -> bool:
        """Whether the victim was served in time."""
        return (self.victim.p99 if self.judges_p99 else self.victim.worst) <= self.limit_ms

    @property
    def is_small(self) -> bool:
        """Whether the memory is within its limit."""
        return self.grown <= BYTES_PER_BYTE * self.sent + ALLOWANCE


class Link:
    """A raw connection."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, frame: bytes) -> None:
        """Send bytes."""
        self._sock.sendall(frame)

    def receive(self) -> bytes:
        """One answer. Raises ConnectionError when the broker closes."""
        return self._take(struct.unpack(">i", self._take(4))[0])

    def ask(self, request: Message, version: int) -> Message:
        """Send a request and decode its answer."""
        self.send(frame_of(request, version))
        view = memoryview(self.receive())
        response = getattr(messages, type(request).__name__.replace("Request", "Response"))
        answer: Message = decode(response, version, view, response_body_pos(request.API_KEY, version, view))[0]
        return answer

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def _take(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            piece = self._sock.recv(min(MIB, size - len(content)))
            if not piece:
                raise ConnectionError("closed")
            content += piece
        return bytes(content)


def frame_of(request: Message | EncodedRequest, version: int) -> bytes:
    """The frame of a request, with its length."""
    body = request.body if isinstance(request, EncodedRequest) else encode_bytes(request, version)
    frame = encode_request_header(request.API_KEY, version, 1, "hostile") + body
    return struct.pack(">i", len(frame)) + frame


def victim(port: int) -> None:
    """The process of the victim: produces until its input ends, then prints its figures."""
    topic = messages.ProduceRequest.TopicProduceData
    data = messages.ProduceRequest.PartitionProduceData
    batch = bytes(batches.encode_batch([batches.Record(0, int(time.time() * 1000), b"k", b"v" * 20, ())]))
    request = messages.ProduceRequest(
        acks=1, timeout_ms=5000, topic_data=[topic(name=VICTIM, partition_data=[data(index=0, records=batch)])]
    )
    frame, link, is_over = frame_of(request, 9), Link(port), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    times = []
    print("up", flush=True)
    while not is_over.is_set():
        begin = time.perf_counter()
        link.send(frame)
        link.receive()
        times.append((time.perf_counter() - begin) * 1000)
        time.sleep(0.005)
    times.sort()
    print(times[len(times) // 2], times[int((len(times) - 1) * 0.99)], times[-1], flush=True)


class Victim:
    """Starts a victim, and collects its figures."""

    def __init__(self, port: int) -> None:
        words = [sys.executable, __file__, "--victim", str(port)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def figures(self) -> Figures:
        """End it."""
        said, _ = self._process.communicate(timeout=PATIENCE_S)
        return Figures(*map(float, said.split()))


class Attacks:
    """One broker, and the rows run against it."""

    def __init__(self, node: OttlaNode) -> None:
        self._node = node
        self._link = Link(node.port)

    def alone(self) -> Figures:
        """The victim without an attack."""
        beside = Victim(self._node.port)
        time.sleep(2)
        return beside.figures()

    def run(self, hostile: Hostile) -> Measured:
        """Send the hostile requests of a row, and read all answers."""
        frame = b"".join(frame_of(request, hostile.version) for request in hostile.requests())
        return self._measure(hostile.title, frame, lambda: self._answers(frame, hostile.count), STALL_MS)

    def flood(self, connections: int) -> Measured:
        """Flood the broker with ApiVersions requests on several connections."""
        frame = frame_of(messages.ApiVersionsRequest(), 0) * 100
        title = f"flood of ApiVersions, {connections} connection{'s' * (connections > 1)}"
        return self._measure(title, frame, lambda: self._flood(frame, connections), FLOOD_P99_MS[connections], True)

    def _measure(
        self, title: str, frame: bytes, attack: Callable[[], str], limit_ms: float, judges_p99: bool = False
    ) -> Measured:
        before = self._memory("VmRSS")
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")
        beside = Victim(self._node.port)
        time.sleep(0.3)
        cpu_s, begin = self._cpu_s(), time.perf_counter()
        answered = attack()
        seconds = time.perf_counter() - begin
        cpu_s = self._cpu_s() - cpu_s
        time.sleep(0.2)
        figures = beside.figures()
        grown = max(0, self._memory("VmHWM") - before)
        return Measured(title, len(frame), answered, seconds, cpu_s, figures, grown, limit_ms, judges_p99)

    def _answers(self, frame: bytes, count: int) -> str:
        link = Link(self._node.port)
        try:
            link.send(frame)
            return f"{sum(len(link.receive()) for _ in range(count)):,} B"
        except ConnectionError:
            return "closed"
        except TimeoutError:
            return "no answer"
        finally:
            link.close()

    def _flood(self, frame: bytes, connections: int) -> str:
        with ExitStack() as stack:
            links = [Link(self._node.port) for _ in range(connections)]
            for link in links:
                stack.callback(link.close)
            until, answers = time.monotonic() + FLOOD_S, 0
            while time.monotonic() < until:
                for link in links:
                    link.send(frame)
                for link in links:
                    for _ in range(100):
                        link.receive()
                        answers += 1
        return f"{answers:,} answers"

    @property
    def _pid(self) -> int:
        return self._node.pid

    def _memory(self, key: str) -> int:
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@cache
def topic_id(port: int, name: str) -> bytes:
    """The id of a topic."""
    link = Link(port)
    asked = [messages.MetadataRequest.MetadataRequestTopic(name=name)]
    (topic,) = link.ask(messages.MetadataRequest(topics=asked), 12).topics  # type: ignore[attr-defined]
    link.close()
    assert topic.topic_id != bytes(16), name
    return bytes(topic.topic_id)


def prepare(port: int) -> None:
    """Create the topics and coordinators that the rows use."""
    link = Link(port)
    topic = messages.CreateTopicsRequest.CreatableTopic
    for name, partitions in ((VICTIM, 1), ("t", 1), ("wide", 5000), (filled_requests.WIDE, 500)):
        asked = topic(name=name, num_partitions=partitions, replication_factor=1)
        link.ask(messages.CreateTopicsRequest(topics=[asked], timeout_ms=PATIENCE_S * 1000), 5)
    for kind, key in enumerate(("g", "tx")):
        for _ in range(100):
            if not link.ask(messages.FindCoordinatorRequest(key=key, key_type=kind), 2).error_code:  # type: ignore[attr-defined]
                break
            time.sleep(0.1)
    link.close()
    time.sleep(2)


def _word(is_within: bool) -> str:
    return "**within**" if is_within else "**over**"


def report(measured: list[Measured], arrays: list[Measured], alone: Figures, command: str, directory: Path) -> None:
    """Write HOSTILE.md."""
    text = HEAD.format(
        stall=f"{STALL_MS:g}",
        bytes_per_byte=BYTES_PER_BYTE,
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()}",
        load=f"{os.getloadavg()[0]:.1f}",
        when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        p99=alone.p99,
        worst=alone.worst,
        command=command,
    )
    text += STALLS
    for row in measured:
        times = f"{row.seconds:.2f} | {row.cpu_s:.2f} | {row.victim.p50:.2f} | {row.victim.p99:.1f}"
        limit = f"{row.victim.worst:.1f} | {'p99' if row.judges_p99 else 'max'} ≤ {row.limit_ms:g}"
        text += f"| {row.title} | {row.sent:,} | {row.answered} | {times} | {limit} | {_word(row.is_swift)} |\n"
    text += MEMORY
    for row in measured:
        limit = f"{row.grown / MIB:.1f} | {(BYTES_PER_BYTE * row.sent + ALLOWANCE) / MIB:.1f}"
        text += f"| {row.title} | {row.sent:,} | {limit} | {_word(row.is_small)} |\n"
    text += ARRAYS if arrays else ""
    for row in arrays:
        stall = f"{row.cpu_s:.2f} | {row.victim.worst:.1f} | {row.limit_ms:g} | {_word(row.is_swift)}"
        growth = f"{row.grown / MIB:.1f} | {(BYTES_PER_BYTE * row.sent + ALLOWANCE) / MIB:.1f} | {_word(row.is_small)}"
        text += f"| {row.title} | {row.sent:,} | {row.answered} | {stall} | {growth} |\n"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "HOSTILE.md").write_text(text)


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="*", help="only rows whose title matches, as a file name does: '*Fetch*'")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--victim", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.victim:
        victim(options.victim)
        return 0
    measured, arrays = [], []
    with tempfile.TemporaryDirectory() as directory, OttlaNode(Path(directory) / "data", SETTINGS) as node:
        prepare(node.port)
        attacks = Attacks(node)
        alone = attacks.alone()
        for hostile in rows():
            if fnmatch.fnmatch(hostile.title, options.rows):
                measured.append(attacks.run(hostile))
                print(_line(measured[-1]), flush=True)
        for connections in FLOOD_P99_MS:
            if fnmatch.fnmatch("flood", options.rows):
                measured.append(attacks.flood(connections))
                print(_line(measured[-1]), flush=True)
        for hostile in array_rows(partial(topic_id, node.port)):
            if fnmatch.fnmatch(hostile.title, options.rows):
                arrays.append(attacks.run(hostile))
                print(_line(arrays[-1]), flush=True)
    report(measured, arrays, alone, " ".join(["bench/hostile.py", *sys.argv[1:]]), options.out)
    return 0 if all(row.is_swift and row.is_small for row in measured + arrays) else 1


def _line(row: Measured) -> str:
    cost = f"victim max {row.victim.worst:.1f} ms, CPU {row.cpu_s:.2f} s, +{row.grown / MIB:.1f} MiB"
    return f"{row.title}: {cost} {_word(row.is_swift)} {_word(row.is_small)}"


if __name__ == "__main__":
    sys.exit(main())
