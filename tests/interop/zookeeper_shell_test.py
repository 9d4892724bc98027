"""ZooKeeper's own shell, from Debian's package, looks into `ottla up --brokers 3` and writes to its store.

Zone: real.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.interop, pytest.mark.slow]

JARS = [Path("/usr/share/java/slf4j-simple.jar"), Path("/usr/share/java/zookeeper.jar")]


@pytest.fixture
def store(tmp_path) -> Iterator[tuple[str, str]]:
    """The store of three running brokers: host:port, and what a client shows to it."""
    missing = [str(jar) for jar in JARS if not jar.exists()]
    assert not missing, f"{missing} missing: testbench/setup installs the package zookeeper"
    words = ["up", "--data", str(tmp_path / "data"), "--brokers", "3", "--port", "0"]
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen([sys.executable, "-m", "ottla", *words], stdout=subprocess.PIPE, stderr=log, text=True)
    for line in process.stdout:
        found = re.match(r"ready .* store=(\S+)", line)
        if found:
            break
    else:
        raise AssertionError((tmp_path / "log").read_text())
    yield found.group(1), (tmp_path / "data/store.digest").read_text().strip()
    process.send_signal(signal.SIGTERM)
    assert process.wait(180) == 0
    process.stdout.close()
    log.close()


def shell(store: tuple[str, str], *lines: str) -> str:
    """What the shell prints for these commands."""
    address, digest = store
    words = ["java", "-cp", ":".join(map(str, JARS)), "org.apache.zookeeper.ZooKeeperMain", "-server", address]
    return subprocess.run(
        words,
        input="\n".join([f"addauth digest {digest}", *lines, "quit", ""]),
        check=False,  # its status is that of the last command
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    ).stdout


def test_a_zookeeper_shell_lists_the_brokers(store):
    assert "[1, 2, 3]\n" in shell(store, "ls /brokers/ids")
    assert re.search(r'"endpoints":\["PLAINTEXT://127.0.0.1:\d+"', shell(store, "get /brokers/ids/2"))


def test_a_zookeeper_shell_writes_reads_and_watches(store):
    said = shell(
        store,
        "create /by-hand one",
        "create -s -e /by-hand-numbered-",
        "get -w /by-hand",
        "set /by-hand two",
        "set -v 5 /by-hand three",
        "stat /by-hand",
        "getAcl /by-hand",
        "delete /by-hand",
        "get /by-hand",
    )
    assert "Created /by-hand\n" in said
    assert re.search(r"Created /by-hand-numbered-\d{10}\n", said)
    assert "type:NodeDataChanged path:/by-hand" in said
    assert "version No is not valid : /by-hand" in said
    assert "dataVersion = 1" in said
    assert "'world,'anyone\n: cdrwa" in said
    assert "Node does not exist: /by-hand" in said
