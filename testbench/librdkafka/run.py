"""Runs tests of librdkafka one by one against a cluster, each in a separate process with a time limit.

Zone: real.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from testbench.apache_kafka.cluster import KafkaCluster
from testbench.cluster import OttlaUp
from testbench.librdkafka.build import Runner
from testbench.librdkafka.expected import PARTS
from testbench.librdkafka.table import Outcome, judge_part, judge_run
from testbench.process import COMPLAINT

BROKERS: Final = ("ottla", "kafka")
SETTINGS: Final = {
    "num.partitions": "4",
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "3000",
}
"""Settings that librdkafka's default scenario needs, in addition to three replicas. The delay is Kafka's default: some
tests need members that join at the same time in one first generation."""
PROTOCOL_VERSION: Final = "4.1.0"
"""The version of Kafka that the runner assumes: the last one in which the share groups of KIP-932 are off by default,
so that their tests are skipped with both brokers."""
TOOL: Final = Path(__file__).parent.parent / "kafka"
TOOLS_OF: Final = "4.4.0"
MULTIPLIER: Final = 2
"""Factor for the time limits inside of the tests, as in librdkafka's own runs."""


@contextlib.contextmanager
def start_brokers(broker: str, directory: Path) -> Iterator[str]:
    """Start three brokers, yield their address for clients, kill them at the end. Raises NodeError, BenchError."""
    if broker == "kafka":
        kafka = KafkaCluster(directory, settings=SETTINGS)
        try:
            kafka.start()
            yield kafka.bootstrap
        finally:
            kafka.stop()
    else:
        ottla = OttlaUp(directory, settings=SETTINGS)
        try:
            ottla.start()
            yield ottla.bootstrap
        finally:
            ottla.kill_all()


def prepare_place(runner: Runner, directory: Path, bootstrap: str) -> None:
    """Write `test.conf` of the runner, and other files that some tests need: Kafka's command line tools, a schema."""
    (directory / "tests").mkdir(exist_ok=True)
    (directory / "src").mkdir(exist_ok=True)
    shutil.copy(runner.schema, directory / "src")
    lines = {
        "bootstrap.servers": bootstrap,
        "broker.address.family": "v4",
        "test.timeout.multiplier": str(MULTIPLIER),
        "test.topic.random": "true",
    }
    (directory / "test.conf").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    tools = directory / "kafka" / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    for name in ("kafka-topics", "kafka-configs"):
        script = tools / f"{name}.sh"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {TOOL} tool {TOOLS_OF} {name} "$@"\n')
        script.chmod(0o755)


def run_number(
    runner: Runner, number: str, tests: Sequence[str], directory: Path, limit_s: float, *, full: bool
) -> Iterator[Outcome]:
    """Run the tests of one number; a test in the list of parts runs each part in a separate process."""
    for part in PARTS.get(number, ()):
        for outcome, output in _run(runner, number, part, tests, directory, limit_s, full):
            yield judge_part(outcome, part, output)
    if number not in PARTS:
        for outcome, _ in _run(runner, number, "", tests, directory, limit_s, full):
            yield outcome


def _run(
    runner: Runner, number: str, part: str, tests: Sequence[str], directory: Path, limit_s: float, full: bool
) -> list[tuple[Outcome, str]]:
    """Run one process; its output goes to a log with the number and the part in its name."""
    name = f"{number}-{part}" if part else number
    log, report = directory / f"{name}.log", directory / f"{name}.json"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [runner.command, "-p1", "-L", *(() if full else ("-Q",))],
            cwd=directory / "tests",
            env=_environment(runner, number, part, directory, report),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        ending = _await_end(process, limit_s)
    seconds = time.monotonic() - began
    written = report.read_text(errors="replace") if report.exists() else ""
    output = log.read_text(errors="replace")
    return [(outcome, output) for outcome in judge_run(tests, written, output, ending, seconds)]


def _environment(runner: Runner, number: str, part: str, directory: Path, report: Path) -> dict[str, str]:
    configuration = directory / "test.conf"
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(runner.directory),
        "RDKAFKA_TEST_CONF": str(configuration),
        "TEST_KAFKA_VERSION": PROTOCOL_VERSION,
        "TEST_REPORT": str(report),
        "TESTS": number,
        **({"SUBTESTS": f"{part}:"} if part else {}),
        "KAFKA_PATH": str(directory / "kafka"),
        "BROKERS": configuration.read_text().splitlines()[0].partition("=")[2],
    }


def _await_end(process: subprocess.Popen[bytes], limit_s: float) -> str | None:
    """The reason of a bad end, None for exit code 0. Ends its whole process group."""
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"it was killed after {limit_s:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code < 0:
        return f"the runner ended by {signal.Signals(-code).name}"
    return f"the runner ended with exit code {code}" if code else None


def find_complaints(directory: Path) -> list[str]:
    """Tracebacks and the like in the logs of the brokers."""
    return [
        f"{log.name}:{number}: {line}"
        for log in sorted(directory.glob("*.log"))
        for number, line in enumerate(log.read_text(errors="replace").splitlines(), start=1)
        if COMPLAINT.search(line)
    ]
