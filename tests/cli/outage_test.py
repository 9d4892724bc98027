"""`ottla consume` while its broker is down: it prints that, waits, and continues."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.client import Producer
from ottla.server.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow


def write(address: str, value: bytes) -> None:
    with Producer({"bootstrap.servers": address}) as producer:
        producer.send("away", value, partition=0)


@pytest.mark.parametrize("words", [["--offset", "start"], ["-g", "away-group", "--offset", "start"]])
def test_a_broker_that_comes_back_is_waited_for(tmp_path: Path, words: list[str]) -> None:
    config = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    with EmbeddedBroker(str(tmp_path), config) as broker:
        address = broker.bootstrap
        write(address, b"one")
        command = [sys.executable, "-m", "ottla", "-b", address, "-X", "default.api.timeout.ms=2000", "consume", "away"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        reader = subprocess.Popen([*command, *words, "-n", "2"], **pipes, env={**os.environ, "OTTLA_BROKERS": ""})
        try:
            assert reader.stdout.readline() == b"one\n"
        except BaseException:
            reader.kill()
            raise
    try:
        # The first line may be that no record has come meanwhile.
        assert any(b"no broker answers, waiting for one to come back" in line for line in reader.stderr)
        with EmbeddedBroker(str(tmp_path), {**config, "listeners": f"PLAINTEXT://{address}"}):
            assert b"a broker answers again" in reader.stderr.readline()
            write(address, b"two")
            assert reader.communicate(timeout=60)[0] == b"two\n"
            assert reader.returncode == 0
    finally:
        reader.kill()
        reader.wait()
