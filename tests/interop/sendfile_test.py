"""Zero copy, seen from outside: strace shows sendfile for large fetches, and no read of the bytes that it sends."""

from __future__ import annotations

import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from testbench.clients import Confluent, Record
from testbench.ottla_node import OttlaNode

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CALL = re.compile(r"(sendfile|pread64|preadv2?|read|readv)\((\d+)(?:<([^>]*)>)?, ?(.*)\)\s+= (-?\d+)")
SMALL = 64 * 1024


class Call(NamedTuple):
    """One system call that moved bytes out of a log file."""

    name: str
    size: int


def traced(broker: OttlaNode, trace: Path, work: Callable[[], None]) -> list[Call]:
    """The calls that a broker made on .log files while `work` ran."""
    if shutil.which("strace") is None:
        pytest.fail("strace is missing: run testbench/setup (Debian: apt-get install strace)")
    calls = "trace=sendfile,read,pread64,readv,preadv,preadv2,mmap"
    # A file per thread: in one file, a call during which another thread makes one is torn into two lines.
    command = ["strace", "-ff", "-y", "-e", calls, "-o", str(trace), "-p", str(broker.pid)]
    strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert strace.stderr is not None
    assert "attached" in strace.stderr.readline()
    try:
        work()
        # The last bytes are here before strace has heard of it: whoever is served after them was served after that.
        ask(broker.port, struct.pack(">hhih", 18, 0, 7, -1))
    finally:
        strace.terminate()
        strace.communicate(timeout=300)
    text = "".join(path.read_text() for path in sorted(trace.parent.glob(f"{trace.name}.*")))
    assert not re.search(r"mmap\([^)]*\.log>", text), "a log was mapped: its bytes may be read without a call"
    return list(_on_logs(text))


def _on_logs(text: str) -> list[Call]:
    found = []
    for line in text.splitlines():
        match = CALL.match(line)
        if match is None or ".log>" not in line or int(match[5]) <= 0:
            continue
        found.append(Call(match[1], int(match[5])))
    return found


def ask(port: int, frame: bytes) -> bytes:
    """The answer to a request, with its length."""
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        data = bytearray()
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            more = sock.recv(1 << 20)
            assert more, "the broker closed the connection"
            data += more
    return bytes(data)


def fetch(port: int, topic: str, offset: int, max_bytes: int) -> bytes:
    """The records part of a Fetch (version 4) answer."""
    name = topic.encode()
    body = struct.pack(">iiiib", -1, 1_000, 1, max_bytes, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, 0, offset, max_bytes)
    data = ask(port, struct.pack(">hhih", 1, 4, 7, -1) + body)
    records = 4 + 4 + 4 + 4 + 2 + len(name) + 4 + 4 + 2 + 8 + 8 + 4
    (size,) = struct.unpack_from(">i", data, records)
    assert size == len(data) - records - 4
    return data[records + 4 :]


@pytest.fixture
def written(node: Callable[..., OttlaNode]) -> OttlaNode:
    """A broker with 8 MB in a topic, in batches of about 16 KiB."""
    broker = node()
    records = [Record(None, bytes(number % 251 for number in range(start, start + 1_000))) for start in range(8_000)]
    Confluent().write(broker.bootstrap, "topic", records, **{"batch.size": 16_384})
    return broker


def test_large_fetches_are_sent_by_the_kernel(written: OttlaNode, tmp_path: Path) -> None:
    content = (written.data / "topic-0" / "00000000000000000000.log").read_bytes()
    answers: list[bytes] = []

    def work() -> None:
        for _ in range(5):
            answers.append(fetch(written.port, "topic", 0, 1 << 20))
        answers.append(fetch(written.port, "topic", 0, 2 * SMALL))

    calls = traced(written, tmp_path / "trace", work)
    assert all(answer == content[: len(answer)] for answer in answers)
    assert all(len(answer) > 1_000_000 for answer in answers[:5])
    by_kernel = sum(call.size for call in calls if call.name == "sendfile")
    assert by_kernel == sum(len(answer) for answer in answers)
    # Headers may be looked at (where does the last batch end?); the bytes of the records are not read.
    read = sum(call.size for call in calls if call.name != "sendfile")
    assert read <= len(answers) * 8_192, [call for call in calls if call.name != "sendfile"][:10]


def test_small_fetches_may_be_read_and_coalesced(written: OttlaNode, tmp_path: Path) -> None:
    content = (written.data / "topic-0" / "00000000000000000000.log").read_bytes()
    answers: list[bytes] = []
    calls = traced(written, tmp_path / "trace", lambda: answers.append(fetch(written.port, "topic", 0, SMALL // 2)))
    assert answers[0] == content[: len(answers[0])]
    assert 0 < len(answers[0]) <= SMALL // 2
    assert sum(call.size for call in calls) >= len(answers[0])


def test_a_client_reads_through_the_same_way(written: OttlaNode, tmp_path: Path) -> None:
    found: list[Record] = []
    calls = traced(written, tmp_path / "trace", lambda: found.extend(Confluent().read(written.bootstrap, "topic")))
    assert len(found) == 8_000
    sent = sum(call.size for call in calls if call.name == "sendfile")
    assert sent > 0.9 * (written.data / "topic-0" / "00000000000000000000.log").stat().st_size
