#!/usr/bin/env python3
"""A million records wait with three delays, and 2,000 a second become due: measures lateness and memory.

    bench/retry.py [--waiting N] [--seconds S] [--rate N] [--redis]

Prints one JSON document. The broker and the service (`ottla retry run`) are separate processes. "late" is the time from
the due time in a record's header until a read_committed reader gets it; the service measures until its commit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testbench.ottla_node import OttlaNode
from tests.retry.redis_server import RedisServer

from ottla.client import Admin, ClientConfig, Cluster, Consumer, NewTopic, Producer, TopicPartition, values_of
from ottla.retry.headers import Failure, Origin, Trail, with_trail

TOPIC = "orders"
PARTITIONS = 2
LEVELS = 3


def make_topics(bootstrap: str) -> None:
    """The topic, its retry topics, and its dead letters."""
    names = [TOPIC, *(f"{TOPIC}.retry.{level + 1}" for level in range(LEVELS)), f"{TOPIC}.dead"]
    with Cluster(ClientConfig(bootstrap_servers=bootstrap)) as cluster:
        values_of(Admin(cluster).create_topics([NewTopic(name, PARTITIONS) for name in names]))


def fill(bootstrap: str, count: int, rate: int, first_due_ms: int) -> None:
    """Write records like `retry_later`; those of the retry topics are due in turn, `rate` a second in total."""
    plain = with_trail(
        (), Trail(2, 0, first_due_ms, Origin(TOPIC, 1, 12_345, first_due_ms, group="billing"),
                  Failure("app.errors.Unavailable", "the price service does not answer")),
    )  # fmt: skip
    at = [name for name, _ in plain].index("retry_topic-backoff-timestamp")
    with Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 100_000}) as producer:
        for number in range(count):
            due_ms = first_due_ms + number * 1000 // rate
            headers = list(plain)
            headers[at] = (plain[at][0], due_ms.to_bytes(6, "big"))
            producer.send(
                f"{TOPIC}.retry.{1 + number % LEVELS}",
                b"%016d" % due_ms + b"v" * 84,
                key=b"%d" % number,
                headers=headers,
                partition=number // LEVELS % PARTITIONS,
                timestamp=first_due_ms,
            )


@contextmanager
def service(bootstrap: str, redis: str | None) -> Iterator[subprocess.Popen[str]]:
    """The mover, started like users do."""
    command = [sys.executable, "-m", "ottla", "retry", "run", "-b", bootstrap, "-o", "json", "--every", "1"]
    process = subprocess.Popen(
        command + (["--redis", redis] if redis else []), stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def numbers_of(process: subprocess.Popen[str]) -> dict[str, int]:
    """The next line of numbers."""
    assert process.stdout is not None
    while True:
        line = json.loads(process.stdout.readline())
        if line["event"] == "numbers":
            return line
        print(line, file=sys.stderr)


def memory_mib(pid: int, name: str) -> float:
    """A line of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise ValueError(name)


def cpu_s(pid: int) -> float:
    """User and system time so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def read_due(bootstrap: str, seconds: float) -> list[int]:
    """Lateness in ms of each record that arrived within the time."""
    settings = {"bootstrap.servers": bootstrap, "isolation.level": "read_committed", "fetch.max.wait.ms": 50}
    late: list[int] = []
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        consumer.seek_to_end()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            records = consumer.poll(0.1)
            now = time.time_ns() // 1_000_000
            late.extend(now - int(record.value[:16]) for record in records)
    return late


def measure(count: int, rate: int, seconds: float, redis: RedisServer | None, directory: Path) -> dict[str, object]:
    """One run."""
    directory.mkdir(parents=True, exist_ok=True)
    with OttlaNode(directory / "data", {"group.initial.rebalance.delay.ms": "0"}) as node:
        make_topics(node.bootstrap)
        first_due_ms = time.time_ns() // 1_000_000 + 60_000 + count * 3 // 10
        fill(node.bootstrap, count, rate, first_due_ms)
        print(f"filled; {first_due_ms / 1000 - time.time():.0f} s left", file=sys.stderr)
        with service(node.bootstrap, redis.url if redis else None) as process:
            began = time.monotonic()
            while (numbers := numbers_of(process))["waiting"] < count and not numbers["returned"]:
                pass
            known_s = time.monotonic() - began
            print(f"known after {known_s:.0f} s; {first_due_ms / 1000 - time.time():.0f} s left", file=sys.stderr)
            time.sleep(max(0.0, first_due_ms / 1000 - time.time() - 1))
            late = sorted(read_due(node.bootstrap, seconds + 1))
            last = numbers
            while last["returned"] < len(late):
                last = numbers_of(process)
            found = {
                "waiting": numbers["waiting"],
                "known_after_s": round(known_s, 1),
                "came": len(late),
                "per_second": round(len(late) / seconds),
                "early": sum(each < 0 for each in late),
                "late_ms": {str(part): late[int(part * len(late))] for part in (0.5, 0.9, 0.99, 0.999)},
                "late_to_commit_ms_p99": last["late_ms_p99"],
                "aborted": last["aborted"],
                "service_cpu_s": cpu_s(process.pid),
                "service_mib": memory_mib(process.pid, "VmRSS"),
                "service_peak_mib": memory_mib(process.pid, "VmHWM"),
            }
            if redis is not None:
                found["redis_mib"] = round(redis.client().info("memory")["used_memory"] / 2**20, 1)
            return found


def main() -> None:
    """Parse the command line, and run."""
    words = argparse.ArgumentParser()
    words.add_argument("--waiting", type=int, default=1_000_000)
    words.add_argument("--rate", type=int, default=2_000)
    words.add_argument("--seconds", type=float, default=20)
    words.add_argument("--redis", action="store_true")
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        redis = RedisServer(Path(directory) / "redis") if asked.redis else None
        if redis is not None:
            redis.start()
        try:
            found = measure(asked.waiting, asked.rate, asked.seconds, redis, Path(directory))
        finally:
            if redis is not None:
                redis.kill()
    print(json.dumps({"scheduler": "redis" if asked.redis else "embedded", **found}, indent=2))


if __name__ == "__main__":
    main()
