"""Options of `ottla up` that decide what clients see: `--advertise`, `--cores`, and KAFKA_… variables.

Zone: real.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, TopicMetadata
from testbench.ports import free_port

from ottla.cli.commands.up import up


@contextmanager
def running(directory: Path, *words: str, **environment: str) -> Iterator[AdminClient]:
    """An admin client of `ottla up`."""
    command = [sys.executable, "-m", "ottla", "up", "--data", str(directory / "data"), "--port", str(free_port())]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, *words], stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **environment}
        )
    try:
        assert process.stdout is not None
        found = next(filter(None, (re.match(r"ready bootstrap=(\S+)", line) for line in process.stdout)), None)
        assert found is not None, (directory / "log").read_text()
        yield AdminClient({"bootstrap.servers": found[1]})
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        process.stdout.close()


def created(admin: AdminClient, name: str) -> TopicMetadata:
    """A new topic with the broker's defaults."""
    admin.create_topics([NewTopic(name, -1, -1)])[name].result()
    deadline = time.monotonic() + 60
    while True:
        found = admin.list_topics(name, 30).topics[name]
        if found.partitions and all(each.leader >= 0 for each in found.partitions.values()):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def hosts(admin: AdminClient) -> list[str]:
    return [broker.host for broker in admin.list_topics(timeout=30).brokers.values()]


@pytest.mark.slow
@pytest.mark.interop
def test_clients_receive_the_advertised_host_and_settings_come_from_the_environment(tmp_path: Path) -> None:
    words = ("--host", "0.0.0.0", "--advertise", "localhost", "--set", "log.retention.hours=5")
    variables = {"KAFKA_NUM_PARTITIONS": "4", "KAFKA_LOG_RETENTION_HOURS": "7"}
    with running(tmp_path, *words, **variables) as admin:
        assert hosts(admin) == ["localhost"]
        assert len(created(admin, "orders").partitions) == 4
        resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
        settings = admin.describe_configs([resource])[resource].result()
        assert settings["retention.ms"].value == str(5 * 3_600_000), "--set takes precedence"


@pytest.mark.slow
@pytest.mark.interop
def test_two_cores_are_two_brokers_with_a_partition_each(tmp_path: Path) -> None:
    with running(tmp_path, "--cores", "2", "--host", "0.0.0.0", "--advertise", "localhost") as admin:
        assert hosts(admin) == ["localhost"] * 2
        partitions = created(admin, "orders").partitions.values()
        assert sorted(each.leader for each in partitions) == [1, 2]
        assert [len(each.replicas) for each in partitions] == [1, 1]


def test_two_options_that_say_how_many_brokers_run_are_refused() -> None:
    refused = CliRunner().invoke(up, ["--cores", "2", "--brokers", "3"])
    assert refused.exit_code == 2
    assert "give one of them" in refused.output
