#!/usr/bin/env python3
"""Hostile input over real sockets against a broker process: it must answer or close, log one line, and continue.

    bench/fuzz.py [--seconds S] [--seed N] [--brokers 3]         without --seconds until Ctrl-C

First every named case of bench/hostile_cases.py and hostile_sets.py, then mutations of valid requests, record batches
and message sets, drawn from the seed, and between them streams of extreme, stateful requests (fuzz_stream.py). With
several brokers (`ottla up --brokers N`) streams only, to all of them.
Exit code 1, with the case that did it, on: a traceback in the broker's log, a dead broker, no answer and no close,
an answer that cannot be decoded (all its bytes are kept in a file), memory that grows beyond all bounds, or a control
client that waits too long.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import random
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testbench.clients import ClientFailure, Confluent, Record
from testbench.cluster import OttlaUp
from testbench.ottla_node import OttlaNode

from bench import hostile_cases, hostile_sets
from bench.fuzz_stream import Stream, keep
from bench.hostile_cases import ANSWERED, CLOSED, EITHER, REFUSED, Case
from ottla.record import batch as batches
from ottla.wire import messages
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import response_body_pos

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 10
"""Maximum time of a request of the corpus, also on a busy machine."""
CONTAINED = "please report this"
"""The log line of a defect that failed only its request: also a finding."""
GROWTH_MAX = 512 * 1024 * 1024
"""Allowed growth of a broker's resident memory in bytes: for leftovers of one bomb per codec in the allocator, for the
groups and topics of a stream, and for requests of megabytes, which take up to 16 times their bytes while they are
handled."""
PER_REPLICA = 32 * 1024
"""Additional bytes per replica of a partition; its memory is not returned to the system with it."""
LOG_LINES_PER_CASE = 3
CORPUS_MIN = 2_000
"""More than the number of named cases, which always run, even without time."""


class Broken(Exception):
    """The broker did something that it must not do."""


def grammar() -> ModuleType:
    """tests/wire/grammar.py: random valid messages, and mutations."""
    path = ROOT / "tests" / "wire" / "grammar.py"
    spec = importlib.util.spec_from_file_location("wire_grammar", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Fuzz:
    """A broker, its attacker, and an ordinary client."""

    def __init__(self, node: OttlaNode | Fleet, seed: int) -> None:
        self.node = node
        self.rng = random.Random(seed)
        self.grammar = grammar()
        self.cases = self.answers = self.closes = 0
        self.replicas = 0
        self.slowest_s = 0.0
        self.control = socket.create_connection(("127.0.0.1", node.port))
        self.control.settimeout(PATIENCE_S)
        offered = self._served()
        self.served = sorted(offered)
        ports = node.ports if isinstance(node, Fleet) else [node.port]
        self.stream = Stream(self.rng, self.grammar, ports, offered)
        self._create_topics()
        self._first: list[int] = []
        self.peak = self.resident = 0
        self.check()

    def close(self) -> None:
        """Close the connections."""
        self.control.close()

    @property
    def requests(self) -> int:
        """Requests that were answered, or that closed their connection."""
        return self.answers + self.closes + self.stream.requests

    def stream_round(self) -> None:
        """Send some hundred requests at once. Raises Broken."""
        try:
            self.stream.round()
        except OSError as error:
            raise Broken(f"no connection: {error}\n{self.node.tail()}") from None
        except ValueError as error:
            raise Broken(str(error)) from None

    def _served(self) -> dict[int, tuple[int, int]]:
        """The APIs that the broker offers: most random requests use these."""
        self.control.sendall(hostile_cases.request(18, 0, b""))
        frame = self._frame(self.control)
        assert frame is not None, "no answer to ApiVersions"
        answer, _ = decode(messages.ApiVersionsResponse, 0, memoryview(frame), 4)
        return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def _create_topics(self) -> None:
        m = messages.CreateTopicsRequest
        configs = [m.CreatableTopicConfig(name="compression.type", value="gzip")]
        topics = [
            m.CreatableTopic(name=hostile_cases.PLAIN, num_partitions=1, replication_factor=1),
            m.CreatableTopic(name=hostile_cases.WATCHED, num_partitions=1, replication_factor=1, configs=configs),
        ]
        body = hostile_cases.encode_bytes(m(topics=topics, timeout_ms=5_000), 5)
        self.control.sendall(hostile_cases.request(19, 5, body))
        assert self._frame(self.control) is not None

    # -- one case --------------------------------------------------------------------------------------------------

    def run(self, case: Case) -> None:
        """Send a case on a new connection. Raises Broken."""
        self.cases += 1
        try:
            sock = socket.create_connection(("127.0.0.1", self.node.port), PATIENCE_S)
        except OSError as error:
            raise Broken(f"no connection before {case.name}: {error}\n{self.node.tail()}") from None
        with sock:
            frame = self._outcome(sock, case)
        if frame is None:
            self.closes += 1
            if case.outcome in (ANSWERED, REFUSED):
                raise Broken(f"{case.name}: the connection was closed, an answer was due")
            return
        self.answers += 1
        if case.outcome == CLOSED:
            raise Broken(f"{case.name}: answered, but the connection should have been closed")
        self._check_answer(case, frame)

    def _outcome(self, sock: socket.socket, case: Case) -> bytes | None:
        try:
            sock.sendall(case.data)
            if case.outcome == EITHER:
                sock.shutdown(socket.SHUT_WR)  # the broker sees the end of the input
            return self._frame(sock)
        except (ConnectionError, BrokenPipeError):
            return None
        except TimeoutError:
            raise Broken(f"{case.name}: neither an answer nor the end within {PATIENCE_S} s") from None

    @staticmethod
    def _frame(sock: socket.socket) -> bytes | None:
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            more = sock.recv(1 << 20)
            if not more:
                return None
            data += more
        return data[4 : 4 + struct.unpack_from(">i", data)[0]]

    @staticmethod
    def _check_answer(case: Case, frame: bytes) -> None:
        key, version = struct.unpack_from(">hh", case.data, 4)
        api = API_TABLE[key]
        # An unsupported version of ApiVersions is answered in version 0 (KIP-511).
        served = 0 if key == 18 and version not in range(5) else version
        view = memoryview(frame)
        try:
            answer, end = decode(api.response, served, view, response_body_pos(key, served, view))
        except MalformedMessage as error:
            text = f"{case.name}: the answer to {api.name} {version} cannot be decoded: {error}"
            raise Broken(f"{text}\n{keep(case.data, frame)}") from None
        if end != len(frame):
            text = f"{case.name}: the answer to {api.name} {version} has {len(frame) - end} bytes too many"
            raise Broken(f"{text}\n{keep(case.data, frame)}")
        if case.outcome == REFUSED and answer.responses[0].partition_responses[0].error_code == 0:
            raise Broken(f"{case.name}: the batch was accepted")

    # -- random cases ----------------------------------------------------------------------------------------------

    def random_case(self) -> Case:
        """A mutated request, or a request with a mutated batch whose checksum may be right again."""
        kind = self.rng.random()
        if kind < 0.3:
            return self._random_batch() if kind < 0.2 else hostile_sets.random_set(self.rng)
        key = self.rng.choice(self.served) if self.rng.random() < 0.95 else None
        frame = self.grammar.request_frame(self.rng, key)
        return Case("a mutated request", hostile_cases.framed(self.grammar.mutate(self.rng, frame)))

    def _random_batch(self) -> Case:
        batch = bytearray(hostile_cases.good_batch(self.rng.randrange(5), self.rng.randrange(1, 9)))
        for _ in range(self.rng.randint(1, 4)):
            batch[self.rng.randrange(8, len(batch))] ^= 1 << self.rng.randrange(8)
        if self.rng.random() < 0.7:
            batches.seal_crc(batch, 0, len(batch))
        topic = self.rng.choice((hostile_cases.PLAIN, hostile_cases.WATCHED))
        return Case("a mutated batch", hostile_cases.produce(topic, bytes(batch)), ANSWERED)

    # -- the broker's health ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that the control client gets an answer, the log is clean, and memory is bounded. Raises Broken."""
        began = time.monotonic()
        try:
            self.control.sendall(hostile_cases.request(3, 1, b"\0\0\0\0"))
            answer = self._frame(self.control)
        except OSError as error:
            raise Broken(f"the control client: {error}") from None
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if answer is None:
            raise Broken("the control client was thrown out")
        complaints = self.node.complaints()
        complaints += [line for line in self.node.said().splitlines() if CONTAINED in line]
        if complaints:
            raise Broken("; ".join(complaints[:3]) + "\n" + self.node.tail())
        # Counted at each look: a topic of 10,000 partitions may be gone before its memory is noticed.
        self.replicas = max(self.replicas, self._count_replicas())
        self._check_memory()

    def _check_memory(self) -> None:
        each = self.node.resident_of_each() if isinstance(self.node, Fleet) else [self.node.resident_bytes()]
        self._first = self._first or each
        self.resident = sum(each)
        self.peak = max(self.peak, self.resident)
        for before, now in zip(self._first, each, strict=True):
            if now - before > GROWTH_MAX + self.replicas * PER_REPLICA:
                text = f"resident memory of a broker grew from {before >> 20} to {now >> 20} MiB"
                raise Broken(f"{text}, with at most {self.replicas} replicas of partitions at once")

    @property
    def rss(self) -> int:
        """Resident memory of all brokers at the beginning, in bytes."""
        return sum(self._first)

    def _count_replicas(self) -> int:
        """The number of replicas of all partitions: a request may create a topic with 10,000."""
        self.control.sendall(hostile_cases.request(3, 1, struct.pack(">i", -1)))
        frame = self._frame(self.control)
        assert frame is not None, "no answer to Metadata"
        answer, _ = decode(messages.MetadataResponse, 1, memoryview(frame), 4)
        return sum(len(each.replica_nodes) for topic in answer.topics for each in topic.partitions)

    def check_service(self) -> None:
        """Check that an ordinary client can write and read. Raises Broken."""
        sent = [Record(b"%d" % self.cases, b"control")]
        try:
            Confluent().write(self.node.bootstrap, "control", sent)
            found = Confluent().read(self.node.bootstrap, "control")
        except ClientFailure as error:
            raise Broken(f"an ordinary client: {error}\n{self.node.tail()}") from None
        if found[-1][:2] != sent[0][:2]:
            raise Broken("an ordinary client does not read what it wrote")

    def check_log_size(self) -> None:
        """Check that the log has at most about one line per closed connection. Raises Broken."""
        lines = self.node.said().count("\n")
        if lines > LOG_LINES_PER_CASE * self.requests + 100:
            raise Broken(f"{lines} log lines for {self.cases} cases")


def named(fuzz: Fuzz) -> Iterator[int]:
    """Run every case of the corpus."""
    for case in itertools.chain(hostile_cases.corpus(fuzz.rng), hostile_sets.message_sets()):
        fuzz.run(case)
        if fuzz.cases % 50 == 0:
            fuzz.check()
        yield fuzz.cases
    fuzz.check()
    fuzz.check_service()


def endless(fuzz: Fuzz) -> Iterator[int]:
    """Run random cases without end."""
    while True:
        case = fuzz.random_case()
        try:
            fuzz.run(case)
            if fuzz.cases % 40 == 0:
                fuzz.stream_round()
            if fuzz.cases % 100 == 0:
                fuzz.check()
        except Broken as error:
            raise Broken(f"{error}\nlast case: {case.name}, {case.data[:2000].hex()}") from None
        if fuzz.cases % 5_000 == 0:
            fuzz.check_service()
        yield fuzz.cases


def streaming(fuzz: Fuzz) -> Iterator[int]:
    """Run streams without end against several brokers."""
    while True:
        fuzz.stream_round()
        fuzz.check()
        yield fuzz.requests


class Fleet(OttlaUp):
    """Several brokers under their supervisor; none may end."""

    def __init__(self, directory: Path, size: int) -> None:
        super().__init__(directory, size, settings={"min.insync.replicas": "1"})
        self._pids: list[int] = []

    def __enter__(self) -> Fleet:
        self.start()
        self._pids = [each.pid for each in self.brokers]
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    @property
    def ports(self) -> list[int]:
        """Ports of the brokers."""
        return [self.port_of(at + 1) for at in range(len(self.brokers))]

    def complaints(self, since: int = 0) -> list[str]:
        """Complaints in the log of the supervisor, and brokers whose process has changed since the start."""
        pids = [each.pid for each in self.brokers]
        ended = [f"broker {at} has ended: process {one}" for at, one in enumerate(self._pids, 1) if one not in pids]
        return [*ended, *super().complaints(since)]

    def resident_of_each(self) -> list[int]:
        """Resident memory of each broker."""
        return [rss_of(each.pid) for each in self.brokers]


def rss_of(pid: int) -> int:
    """Resident memory of a process, bytes; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (FileNotFoundError, ProcessLookupError):
        return 0


def fuzzing(node: OttlaNode | Fleet, seed: int, seconds: float | None, show: bool = False) -> Fuzz:
    """Run the corpus, then random cases until the time is over. Raises Broken."""
    fuzz = Fuzz(node, seed)
    began = shown = time.monotonic()
    live = sys.stderr.isatty()
    every_s, line = (0.5, "\r{}") if live else (60, "{}\n")
    try:
        work = streaming(fuzz) if isinstance(node, Fleet) else itertools.chain(named(fuzz), endless(fuzz))
        with contextlib.suppress(KeyboardInterrupt):
            for _ in work:
                now = time.monotonic()
                if show and now - shown > every_s:
                    shown = now
                    print(line.format(report(fuzz, now - began)), end="", file=sys.stderr, flush=True)
                if (
                    seconds is not None
                    and now - began > seconds
                    and (isinstance(node, Fleet) or fuzz.cases > CORPUS_MIN)
                ):
                    break
        fuzz.check()
        fuzz.check_service()
        if isinstance(node, OttlaNode):
            fuzz.check_log_size()
    finally:
        fuzz.close()
    return fuzz


def report(fuzz: Fuzz, seconds: float) -> str:
    """Print one line of numbers."""
    return (
        f"{seconds:6.0f} s  {fuzz.requests} requests ({fuzz.requests / max(seconds, 1):.0f} per s), "
        f"{fuzz.answers + fuzz.stream.answers} answered, {fuzz.closes + fuzz.stream.closes} closed, 0 process ends, "
        f"memory +{(fuzz.resident - fuzz.rss) >> 20} MiB (peak +{(fuzz.peak - fuzz.rss) >> 20}, "
        f"{fuzz.replicas} replicas), slowest control answer {fuzz.slowest_s * 1000:.0f} ms"
    )


def _target(directory: Path, brokers: int) -> OttlaNode | Fleet:
    return OttlaNode(directory / "data") if brokers == 1 else Fleet(directory, brokers)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--brokers", type=int, default=1, help="several: `ottla up --brokers N`, streams only")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as directory,
        _target(Path(directory), options.brokers) as node,
    ):
        try:
            fuzz = fuzzing(node, options.seed, options.seconds, show=True)
        except Broken as error:
            print(f"\nseed {options.seed}: {error}", file=sys.stderr)
            return 1
        print(f"{chr(13) if sys.stderr.isatty() else ''}{report(fuzz, time.monotonic() - began)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
