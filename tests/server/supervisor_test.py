"""`ottla up --brokers N` as real processes: starts, deaths, rolls and stops.

Zone: real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ottla.server.supervisor.supervisor import Keeper

pytestmark = pytest.mark.slow

OTTLA = [sys.executable, "-m", "ottla", "up"]
WAIT_S = 180


class Up:
    """One supervisor; its lines are read as they come."""

    def __init__(self, data: Path, *words: str, brokers: int = 3) -> None:
        self.data = data
        self.log = data.with_name(f"{data.name}.log")
        command = [*OTTLA, "--data", str(data), "--brokers", str(brokers), "--port", "0", "-o", "json", *words]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, process_group=0)
        self.events: list[dict] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def event(self, name: str, since: int = 0, **fields) -> dict:
        """Wait for the first event of that name and fields after a position."""

        def found() -> dict | None:
            for event in self.events[since:]:
                if event["event"] == name and fields.items() <= event.items():
                    return event
            return None

        with self._news:
            there = self._news.wait_for(lambda: found() or not self._reader.is_alive(), WAIT_S)
            got = found()
        assert there, f"no {name} {fields}; {self.events}\n{self.said}"
        assert got is not None, f"it ended without {name} {fields}; {self.events}\n{self.said}"
        return got

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def status(self) -> dict:
        return json.loads((self.data / "status.json").read_text())

    def pid(self, broker: int) -> int:
        return int((self.data / f"broker-{broker}" / "pid").read_text())

    @property
    def nursery(self) -> int:
        """The one child process: the fork server."""
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)

    def pids(self) -> list[int]:
        return [self.pid(broker["id"]) for broker in self.status["brokers"]]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its exit status."""
        status = self.process.wait(WAIT_S)
        self._reader.join()
        return status

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.end()

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        self.process.stdout.close()


@pytest.fixture
def up(tmp_path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*words: str, brokers: int = 3, ready: bool = True) -> Up:
        started.append(Up(tmp_path / "data", *words, brokers=brokers))
        if ready:
            started[-1].event("ready")
        return started[-1]

    yield start
    for one in started:
        one.clean_up()


def ottla_up(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OTTLA, *words], check=False, capture_output=True, text=True, timeout=300)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def kazoo(store: str, **options) -> Iterator[KazooClient]:
    client = KazooClient(store, **options)
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_it_starts_tells_where_everything_is_and_stops_in_order(up, tmp_path):
    ready_file = tmp_path / "ready"
    one = up("--ready-file", str(ready_file))
    ready = one.event("ready")
    assert ready["brokers"] == [1, 2, 3]
    assert ready_file.read_text() == f"{ready['bootstrap']}\n"
    status = one.status
    assert (status["pid"], status["bootstrap"]) == (one.process.pid, ready["bootstrap"])
    assert [broker["state"] for broker in status["brokers"]] == ["ready"] * 3
    assert len({broker["port"] for broker in status["brokers"]} | {int(ready["bootstrap"].split(":")[1])}) == 4
    pids = one.pids()
    assert all(runs(pid) for pid in pids)
    host, port = ready["store"].split(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(b"ruok")
        assert sock.recv(4) == b"imok"
    with pytest.raises(NoAuthError), kazoo(ready["store"]) as stranger:
        stranger.get_children("/")
    digest = one.data / "store.digest"
    assert digest.stat().st_mode & 0o777 == 0o600
    with kazoo(ready["store"], auth_data=[("digest", digest.read_text().strip())]) as operator:
        assert sorted(operator.get_children("/brokers/ids")) == ["1", "2", "3"]
        endpoints = json.loads(operator.get("/brokers/ids/1")[0])["endpoints"]
    assert one.stop() == 0
    assert not digest.exists()
    (theirs,) = [int(text.rpartition(":")[2]) for text in endpoints if text.startswith("BROKERS://127.0.0.1:")]
    assert theirs not in {broker["port"] for broker in status["brokers"]}
    assert not any(runs(pid) for pid in pids)
    assert not ready_file.exists()
    assert not list(one.data.glob("**/pid"))
    assert [one.said.count(f"broker {broker} stopped") for broker in (1, 2, 3)] == [1, 1, 1]


def test_a_broker_that_dies_is_started_again(up):
    one = up()
    before = one.pid(2)
    since = len(one.events)
    os.kill(before, signal.SIGKILL)
    ended = one.event("broker_ended", since, broker=2)
    assert (ended["pid"], ended["status"]) == (before, -signal.SIGKILL)
    again = one.event("broker_ready", since, broker=2)
    assert again["pid"] == one.pid(2) != before
    assert one.status["brokers"][1]["restarts"] == 1
    assert one.stop() == 0


def test_pauses_grow_while_a_broker_keeps_dying(up):
    one = up(brokers=1)
    pauses = []
    for _ in range(3):
        since = len(one.events)
        os.kill(one.pid(1), signal.SIGKILL)
        pauses.append(one.event("broker_ended", since)["restart_in_s"])
        one.event("broker_ready", since)
    assert pauses == [0.1, 0.2, 0.4]


def test_a_second_start_on_the_same_data_is_refused_by_name(up):
    one = up()
    second = ottla_up("--data", str(one.data), "--brokers", "3", "--port", "0")
    assert second.returncode == 1
    assert f"{one.data} is in use by process {one.process.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert one.status["state"] == "running"
    assert one.stop() == 0


def test_brokers_die_with_a_supervisor_that_is_killed_and_the_data_can_be_used_again(up):
    one = up()
    pids = one.pids()
    one.signal(signal.SIGKILL)
    one.end()
    wait_until(lambda: not any(map(runs, pids)), "brokers outlive their supervisor")
    again = up()
    assert not set(again.pids()) & set(pids)
    assert again.stop() == 0


def test_the_second_signal_ends_everything_at_once(up):
    one = up()
    pids = one.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that no broker can stop in order
    one.signal(signal.SIGINT)
    wait_until(lambda: "a second signal kills them" in one.said, "the first signal is not heard")
    one.signal(signal.SIGINT)
    assert one.end() == 128 + signal.SIGINT
    wait_until(lambda: not any(map(runs, pids)), "brokers outlive their supervisor")


def test_without_their_nursery_all_brokers_are_started_again(up):
    one = up()
    pids = one.pids()
    since = len(one.events)
    os.kill(one.nursery, signal.SIGKILL)
    for broker in (1, 2, 3):
        one.event("broker_ready", since, broker=broker)
    assert not set(one.pids()) & set(pids)
    assert one.stop() == 0


def test_rolling_starts_every_broker_anew_one_by_one(up):
    one = up()
    pids = one.pids()
    nursery = one.nursery
    rolled = ottla_up("--roll", "--data", str(one.data))
    assert (rolled.returncode, rolled.stdout.splitlines()[-1]) == (0, "rolled"), rolled.stderr
    one.event("roll_finished")
    assert not set(one.pids()) & set(pids)
    assert one.nursery != nursery, "brokers run the code that was loaded at the start"
    ready = [event["broker"] for event in one.events if event["event"] == "broker_ready"][3:]
    assert sorted(ready) == [1, 2, 3]
    since = len(one.events)
    one.signal(signal.SIGHUP)
    one.event("roll_finished", since)
    assert one.status["rolls"] == {"asked": 2, "done": 2, "failed": 0}
    assert one.stop() == 0


def test_there_is_nobody_to_roll(tmp_path):
    rolled = ottla_up("--roll", "--data", str(tmp_path))
    assert rolled.returncode == 1
    assert f"no `ottla up --brokers` runs on {tmp_path}" in rolled.stderr


def test_a_broker_that_cannot_start_is_named_and_nothing_is_left_running(up, tmp_path):
    directory = tmp_path / "data" / "broker-2"
    directory.mkdir(parents=True)
    (directory / "meta.properties").write_text("version=0\nbroker.id=7\ncluster.id=somebody-elses\n")
    one = up(ready=False)
    assert one.end() == 1
    assert "broker 2: " in one.said
    assert "Traceback" not in one.said
    assert not list(one.data.glob("**/pid"))


def test_a_broker_that_failed_is_not_taken_for_one_that_starts():
    """On a busy machine it is started again before whoever waits for it goes on: `up` said that all were ready."""

    async def wait() -> str:
        keeper = Keeper(1, 0)
        waiting = asyncio.ensure_future(keeper.wait_for_state("ready", "down"))
        await asyncio.sleep(0)
        keeper.change_state("down")
        await asyncio.wait((waiting,))
        keeper.change_state("starting")
        return await waiting

    assert asyncio.run(wait()) == "down"


def test_fewer_brokers_than_there_is_data_of_is_refused(up):
    one = up()
    assert one.stop() == 0
    fewer = ottla_up("--data", str(one.data), "--brokers", "2", "--port", "0")
    assert fewer.returncode == 2
    assert "start all with --brokers 3" in fewer.stderr
    alone = ottla_up("--data", str(one.data), "--port", "0")
    assert alone.returncode == 2
    assert "start them with --brokers" in alone.stderr
