#!/usr/bin/env python3
"""Measure TLS beside Apache Kafka in one run, logins beside another's produces, and what ACLs cost.

    bench/security.py [--runs N] [--rows KEY,KEY…] [--quick] [--no-kafka] [--out DIR]

Writes SECURITY.md. Exit code 1 when a row is over its limit. `--quick` is a short run for development; its verdicts are
not kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import hostile, security_work, work
from bench.filling import Filling, judge
from bench.logins import connect, tls_context
from bench.memory import touch_memory
from bench.report import keep, number, write
from bench.rows import Row
from bench.secure_peers import SUITE, Certificates, SecureKafka, SecureOttla, SecurePeer

HEAD = """# Results: security

Written by `bench/security.py`; do not edit. CPU is that of the broker's process, from the scheduler's accounting in ns;
medians of {runs} interleaved runs, both brokers alive together, Apache Kafka 4.4.0 warmed up first. TLS is version 1.3
with TLS_AES_256_GCM_SHA384 and a P-256 certificate at both. Handshakes are whole ones, without sessions. The clients
that log in run while a processor is idle (SCHED_IDLE), as if they were on other machines. A limit is a multiple of
Kafka's median in the same run, or absolute without a ×.

Machine: {machine}. Load average during the runs: {load}. Measured {when}.
Command: `{command}`

| what | unit | Ottla | Apache Kafka | ratio | limit | verdict |
|---|---|---|---|---|---|---|
"""
MB = 1_000_000
RATE = 1_000
"""Logins a second that are tried."""
LOGINS_S = 10
BYTE_ROWS = ("produce", "consume", "consume-plain", "multiple")
PEER_ROWS = (*BYTE_ROWS, "handshake", "handshake-rate", "idle-tls", "idle-plain", "login-rate", "login-p99")


def table() -> dict[str, Row]:
    """All rows, in the order of the report."""
    rows = [
        Row("produce", "TLS: produce 1 KiB records, 1 MB batches, acks 1 (librdkafka)", "CPU s/GB", 1),
        Row("consume", "TLS: consume 1 KiB records (librdkafka)", "CPU s/GB", 1),
        Row("consume-plain", "the same without TLS, by sendfile", "CPU s/GB", None),
        Row("multiple", "TLS as a multiple of sendfile", "×", None),
        Row("handshake", "TLS handshake with one ApiVersions", "CPU ms", 1),
        Row("handshake-rate", "the same, as many as four clients on this machine make", "1/s", None),
        Row("idle-tls", "resident memory of an idle connection with TLS", "KiB", None, None),
        Row("idle-plain", "resident memory of an idle connection without TLS", "KiB", None, None),
        Row("login-rate", f"connections with TLS and SCRAM-SHA-512, {RATE:,} a second tried", "1/s", None, None),
        Row("login-p99", "p99 of another's small produces meanwhile, as a multiple of alone", "×", 3, None),
        Row("decision", "cached decision by ACLs", "µs", 1, None),
        Row("authorizer-1", "authorizer in a Produce of 1 partition, per partition", "µs", 0.5, None),
        Row("authorizer-10", "authorizer in a Produce of 10 partitions, per partition", "µs", 0.5, None),
        Row("secure-start", "`ottla up --secure`, first start: command to ready", "s", 1, None),
        Row("secure-again", "`ottla up --secure`, later start: command to ready", "s", None, None),
    ]
    return {row.key: row for row in rows}


class Bench(Filling):
    """Runs the rows."""

    def decisions(self) -> None:
        """Rows without a broker."""
        self.loads.append(os.getloadavg()[0])
        rows: dict[str, Callable[[], float]] = {
            "decision": security_work.decision_us,
            "authorizer-1": lambda: security_work.produce_us(1),
            "authorizer-10": lambda: security_work.produce_us(10),
        }
        for key, measure in rows.items():
            for _ in range(self.options.runs if self.wants(key) else 0):
                self.add(key, "ottla", measure())

    def starts(self) -> None:
        """Rows of `ottla up --secure`."""
        for at in range(self.options.runs if self.wants("secure-start", "secure-again") else 0):
            directory = self.directory / f"secure-{at}"
            self.add("secure-start", "ottla", security_work.secure_start(directory))
            self.add("secure-again", "ottla", security_work.secure_start(directory))

    def peers(self) -> None:
        """Rows of brokers that are up together."""
        if not self.wants(*PEER_ROWS):
            return
        certificates = Certificates(self.directory / "certificates")
        self.authority = certificates.authority
        ottla = SecureOttla(self.directory / "ottla", certificates)
        peers: list[SecurePeer] = [ottla]
        try:
            if not self.options.no_kafka:
                peers.append(SecureKafka(self.directory / "kafka", certificates))
            for peer in peers:
                self._warm(peer)
            for at in range(self.options.runs):
                self.begin_run(at)
                self._idle(at, certificates)
                for peer in peers:
                    self._bytes(peer)
                for peer in peers:
                    self._handshakes(peer)
                self._logins(ottla)
        finally:
            for peer in peers:
                peer.stop()

    def _warm(self, peer: SecurePeer) -> None:
        """Create topics; a cold Kafka takes several times the CPU."""
        self.say(f"warming {peer.name}")
        with connect(peer.tls_port, tls_context(self.authority)) as sock:
            assert sock.cipher()[0] == SUITE, sock.cipher()  # type: ignore[attr-defined]
        work.make_topic(peer.port, "read")
        work.make_topic(peer.port, work.TOPIC)
        if peer.name == "ottla":
            hostile.prepare(peer.port)
        size = int(400 * MB * self.scale)
        if self.wants(*BYTE_ROWS):
            security_work.produce(peer, "read", self.authority, size)
            security_work.consume(peer, "read", size, self.authority)
        if self.wants("handshake", "handshake-rate"):
            security_work.handshakes(peer, self.authority, int(4_000 * self.scale))

    def _bytes(self, peer: SecurePeer) -> None:
        if not self.wants(*BYTE_ROWS):
            return
        touch_memory()
        written = security_work.produce(peer, work.TOPIC, self.authority, int(300 * MB * self.scale))
        self.add("produce", peer.name, written)
        size = int(400 * MB * self.scale)
        secure = security_work.consume(peer, "read", size, self.authority)
        plain = security_work.consume(peer, "read", size, None)
        self.add("consume", peer.name, secure)
        self.add("consume-plain", peer.name, plain)
        self.add("multiple", peer.name, secure / plain)

    def _handshakes(self, peer: SecurePeer) -> None:
        if self.wants("handshake", "handshake-rate"):
            cpu_ms, rate = security_work.handshakes(peer, self.authority, int(2_000 * self.scale))
            self.add("handshake", peer.name, cpu_ms)
            self.add("handshake-rate", peer.name, rate)

    def _idle(self, at: int, certificates: Certificates) -> None:
        """Rows of memory, on a new broker: one that has worked would use memory again that it has freed."""
        if not self.wants("idle-tls", "idle-plain"):
            return
        fresh = SecureOttla(self.directory / f"idle-{at}", certificates)
        try:
            count = int(800 * self.scale)
            self.add("idle-plain", "ottla", security_work.idle_memory(fresh, None, count))
            self.add("idle-tls", "ottla", security_work.idle_memory(fresh, self.authority, count))
        finally:
            fresh.stop()

    def _logins(self, ottla: SecureOttla) -> None:
        if self.wants("login-rate", "login-p99"):
            rate, multiple = security_work.logins_beside(ottla, self.authority, LOGINS_S * self.scale + 1, RATE)
            self.add("login-rate", "ottla", rate)
            self.add("login-p99", "ottla", multiple)


def _line(row: Row) -> str:
    own, kafka = row.figure("ottla"), row.figure("kafka")
    ratio = own / kafka if own is not None and kafka else None
    limit = "–" if row.limit is None else f"≤ {row.limit:g}" + (" ×" if row.against else "")
    cells = [row.title, row.unit, number(own), number(kafka), number(ratio), limit, f"**{row.verdict}**"]
    return "| " + " | ".join(cells) + " |\n"


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs (default 5)")
    parser.add_argument("--rows", dest="only", default="", help="keys of rows, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a short dose")
    parser.add_argument("--no-kafka", action="store_true", help="without Apache Kafka: no verdicts against it")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where SECURITY.md goes")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the bench."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as name:
        bench = Bench(table(), options, Path(name))
        bench.decisions()
        bench.starts()
        bench.peers()
    command = "bench/security.py " + " ".join(arguments)
    notes = keep(bench.rows, bench.only, options.out, "security")
    write(
        bench.rows, bench.loads, options.runs, command, options.out, name="security", head=HEAD, notes=notes, line=_line
    )
    return judge(bench.rows, bench.only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
