"""The life of a broker: start, readiness, defects, the order of stopping.

Zone: real.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from ottla.config.broker import BrokerConfig
from ottla.metrics import Registry
from ottla.seams import Failure, Gate, Kind
from ottla.server.service import Service


class Staged:
    """A broker that records the calls of its shell."""

    def __init__(self, config, world, listener) -> None:
        self.world = world
        self.listener = listener
        self.listening = False
        self.ready = False
        self.failed = None
        self.metrics = Registry()
        self.events: list[str] = []
        self.slots: list = []
        self.ready_at_once = True
        self.on_request = self.keep

    def find_address_limit(self, _address):
        return None

    def start_broker(self, endpoints):
        self.events.append("start")
        self.endpoints = endpoints
        self.listening = self.ready = self.ready_at_once

    def hand_over_leaderships(self, done, hand_over=True):
        self.events.append("leave")
        done()

    def stop_broker(self, done):
        self.events.append("stop")
        self.world.disks[0].replace_file("marker", b"clean", done)

    def keep(self, slot, frame):
        self.slots.append(slot)
        return Gate.NEXT

    def on_frame(self, slot, frame):
        self.events.append("frame")
        return self.on_request(slot, frame)

    def on_gone(self, peer):
        self.events.append("gone")

    def on_alarm(self):
        self.events.append("alarm")
        self.listening = self.ready = True

    def end_turn(self):
        pass

    def run_background(self, budget_ns):
        self.events.append("background")
        return False


class Life:
    """A service on a thread, with its staged broker."""

    def __init__(self, directory, prepare=lambda broker: None, **properties) -> None:
        keys = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)}
        keys |= {name.replace("_", "."): value for name, value in properties.items()}
        config, _warnings = BrokerConfig.from_properties(keys)
        self.made: list[Staged] = []

        def make(config, world, listener):
            broker = Staged(config, world, listener)
            prepare(broker)
            self.made.append(broker)
            return broker

        self.service = Service(config, make)
        self.ready = threading.Event()
        self.outcome: list = []
        self.socks: list[socket.socket] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            self.outcome.append(self.service.run_until_stopped(self.ready.set))
        except Failure as failure:
            self.outcome.append(failure)
        finally:
            self.ready.set()

    @property
    def broker(self) -> Staged:
        return self.made[0]

    def start(self):
        self.thread.start()
        assert self.ready.wait(180)
        return self

    def connect(self):
        host, _, port = self.service.bootstrap.rpartition(":")
        self.socks.append(socket.create_connection((host, int(port)), timeout=180))
        return self.socks[-1]

    def listens(self):
        try:
            self.connect()
        except OSError:
            return False
        return True

    def stop(self):
        self.service.ask_to_stop()
        self.thread.join(180)
        assert not self.thread.is_alive()
        return self.outcome[0]


@pytest.fixture
def live():
    """Makes lives, and ends them."""
    lives: list[Life] = []

    def make(*words, **properties):
        lives.append(Life(*words, **properties))
        return lives[-1]

    yield make
    for life in lives:
        for sock in life.socks:
            sock.close()
        if life.thread.ident is not None:
            life.service.ask_to_stop()
            life.thread.join(180)


def wait(holds):
    end = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.001)


REQUEST = struct.pack(">i", 10) + bytes(10)


def test_a_broker_is_told_where_it_listens_and_stops_in_order(live, tmp_path):
    life = live(tmp_path / "new" / "data").start()
    assert life.broker.endpoints[0].port > 0
    assert life.service.bootstrap == f"127.0.0.1:{life.broker.endpoints[0].port}"
    assert life.stop() is True
    assert [event for event in life.broker.events if event != "background"] == ["start", "leave", "stop"]
    assert (tmp_path / "new" / "data" / "marker").read_bytes() == b"clean"


def test_leaderships_are_handed_over_while_the_doors_are_open(live, tmp_path):
    def leader(broker):
        broker.hand_over_leaderships = lambda done, hand_over: handed_over.append((done, hand_over))

    handed_over = []
    life = live(tmp_path, leader).start()
    life.service.ask_to_stop()
    wait(lambda: bool(handed_over))
    life.connect().sendall(REQUEST)
    wait(lambda: "frame" in life.broker.events)
    assert "stop" not in life.broker.events
    done, hand_over = handed_over[0]
    assert hand_over
    life.service.loop.call_soon_threadsafe(done)
    assert life.stop() is True
    assert life.broker.events[-1] == "stop"


def test_nothing_is_handed_over_where_all_stop(live, tmp_path):
    asked = []

    def leader(broker):
        def leave(done, hand_over):
            asked.append(hand_over)
            done()

        broker.hand_over_leaderships = leave

    life = live(tmp_path, leader).start()
    life.service.ask_to_stop(hand_over=False)
    life.thread.join(180)
    assert asked == [False]
    assert life.broker.events[-1] == "stop"


def test_other_brokers_are_let_in_before_the_broker_is_ready(live, tmp_path):
    def slow(broker):
        broker.ready_at_once = False

    life = live(tmp_path, slow)
    life.thread.start()
    wait(lambda: bool(life.made) and "start" in life.broker.events)
    life.broker.listening = True
    wait(life.listens)
    assert not life.ready.is_set()
    life.broker.ready = True
    assert life.ready.wait(180)
    assert life.stop() is True


def test_nobody_is_let_in_before_the_broker_listens(live, tmp_path):
    def slow(broker):
        broker.ready_at_once = False

    life = live(tmp_path, slow)
    life.thread.start()
    wait(lambda: bool(life.made) and "start" in life.broker.events)
    with pytest.raises(OSError, match="refused"):
        life.connect()
    assert not life.ready.is_set()
    life.broker.listening = life.broker.ready = True
    assert life.ready.wait(180)
    life.connect()
    assert life.stop() is True


def test_a_broker_that_cannot_become_ready_ends_the_start(live, tmp_path):
    def lost(broker):
        broker.ready_at_once = False
        broker.failed = Failure(Kind.NOT_DONE, "for the test")

    life = live(tmp_path, lost).start()
    assert life.outcome[0].message == "for the test"
    assert "stop" not in life.broker.events


def test_a_stop_before_the_broker_is_ready_is_an_orderly_one(live, tmp_path):
    def slow(broker):
        broker.ready_at_once = False

    life = live(tmp_path, slow)
    life.thread.start()
    wait(lambda: life.made and "start" in life.broker.events)
    life.service.ask_to_stop()
    life.broker.ready = True  # too late
    life.thread.join(180)
    assert life.outcome == [True]
    assert life.broker.events[-2:] == ["leave", "stop"]
    assert not life.broker.listener.is_wanted()
    assert (tmp_path / "marker").exists()


def test_a_broker_that_does_harm_by_staying_is_stopped_in_order_and_that_is_a_failure(live, tmp_path):
    life = live(tmp_path).start()
    life.service.loop.call_soon_threadsafe(life.broker.listener.on_failure_not_reported)
    life.thread.join(180)
    assert life.outcome == [False]
    assert life.broker.events[-2:] == ["leave", "stop"]


def test_a_request_that_waits_is_answered_while_stopping(live, tmp_path):
    life = live(tmp_path).start()
    sock = life.connect()
    sock.sendall(REQUEST)
    wait(lambda: bool(life.broker.slots))
    life.service.ask_to_stop()
    wait(lambda: not life.listens())
    sock.sendall(REQUEST)
    network, slot = life.broker.world.network, life.broker.slots[0]
    life.service.loop.call_soon_threadsafe(network.send_reply, slot, [b"late"])
    assert sock.recv(100) == b"\0\0\0\4late"
    # The last request was not read, so the kernel resets the connection.
    with pytest.raises(ConnectionResetError):
        sock.recv(100)
    life.thread.join(180)
    assert life.outcome == [True]
    assert life.broker.events.count("frame") == 1
    assert life.broker.events.index("stop") > life.broker.events.index("frame")


@pytest.mark.slow
def test_a_request_that_is_never_answered_does_not_hold_the_stop_up(live, tmp_path):
    life = live(tmp_path).start()
    sock = life.connect()
    sock.sendall(REQUEST)
    wait(lambda: bool(life.broker.slots))
    assert life.stop() is True
    assert sock.recv(100) == b""


def test_a_defect_stops_the_broker_without_its_marker(live, tmp_path, caplog):
    def faulty(broker):
        def fail(slot, frame):
            raise AssertionError("for the test")

        broker.on_request = fail

    life = live(tmp_path, faulty).start()
    sock = life.connect()
    sock.sendall(REQUEST)
    assert sock.recv(100) == b""
    life.thread.join(180)
    assert life.outcome == [False]
    assert "stop" not in life.broker.events
    assert any(record.levelname == "CRITICAL" and record.exc_info for record in caplog.records)


def test_a_defect_while_stopping_ends_the_stop(live, tmp_path):
    def faulty(broker):
        def stop(_done):
            broker.world.disks[0].sync_dir("", lambda _none: 1 // 0)

        broker.stop_broker = stop

    life = live(tmp_path, faulty).start()
    assert life.stop() is False


def test_idle_time_is_given_after_requests_and_not_without_end(live, tmp_path):
    life = live(tmp_path).start()
    wait(lambda: "background" in life.broker.events)
    time_given = life.broker.events.count("background")
    sock = life.connect()
    sock.sendall(REQUEST)
    wait(lambda: life.broker.events.count("background") > time_given)
    sock.close()
    wait(lambda: "gone" in life.broker.events)
    life.stop()
    assert life.broker.events.count("background") < 20


@pytest.mark.slow
def test_there_is_no_idle_time_once_the_broker_stops(live, tmp_path):
    def slow(broker):
        def stop(done):
            broker.events.append("stop")
            broker.world.network.call_broker(1, bytes(10), 0, lambda _none: None)
            loop = life.service.loop
            loop.call_later(0.1, broker.world.disks[0].sync_dir, "", done)

        broker.stop_broker = stop

    life = live(tmp_path, slow).start()
    life.connect().sendall(REQUEST)
    wait(lambda: bool(life.broker.slots))
    assert life.stop() is True
    assert "background" not in life.broker.events[life.broker.events.index("stop") :]


def test_an_alarm_reaches_the_broker(live, tmp_path):
    def sleeper(broker):
        broker.ready_at_once = False
        broker.world.clock.set_alarm(broker.world.clock.now().mono_ns + 5_000_000)

    life = live(tmp_path, sleeper).start()
    assert "alarm" in life.broker.events
    assert life.stop() is True


def test_a_directory_in_use_is_refused(live, tmp_path):
    life = live(tmp_path).start()
    second = live(tmp_path).start()
    assert second.outcome[0].kind is Kind.CONFLICT
    assert str(tmp_path) in second.outcome[0].message
    assert life.stop() is True


def test_a_taken_port_is_refused_and_the_directory_is_free_again(live, tmp_path):
    life = live(tmp_path / "a").start()
    port = life.broker.endpoints[0].port
    second = live(tmp_path / "b", listeners=f"PLAINTEXT://127.0.0.1:{port}").start()
    assert second.outcome[0].kind is Kind.NOT_DONE
    assert str(port) in second.outcome[0].message
    life.stop()
    third = live(tmp_path / "b").start()
    assert third.stop() is True


def test_advertised_listeners_are_what_clients_are_told(live, tmp_path):
    life = live(tmp_path, advertised_listeners="PLAINTEXT://broker.example:*").start()
    (told,) = life.broker.endpoints
    assert told.host == "broker.example"
    assert told.port > 0
    life.stop()


# -- the whole process ------------------------------------------------------------------------------------------------


@pytest.fixture
def up():
    """Starts `ottla up` on a free port."""
    started: list[subprocess.Popen] = []

    def start(*words):
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "ottla", "up", "--port", "0", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_up_says_that_it_is_ready_and_leaves_nothing_behind(up, tmp_path):
    ready = tmp_path / "ready"
    ready.write_text("stale")
    process = up("--ready-file", str(ready))
    line = process.stdout.readline()
    assert line == f"ready bootstrap={ready.read_text().strip()}\n"
    host, _, port = ready.read_text().strip().rpartition(":")
    with socket.create_connection((host, int(port)), timeout=180) as sock:
        sock.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        assert sock.recv(100)[4:8] == struct.pack(">i", 7)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "")
    first = err.splitlines()[0]
    assert first.startswith("data directory ")
    assert not os.path.exists(first.split()[2].rstrip(","))
    assert not ready.exists()


@pytest.mark.slow
def test_up_refuses_a_ready_file_that_cannot_be_before_it_starts(up, tmp_path):
    ready = tmp_path / "missing" / "ready"
    process = up("--data", str(tmp_path / "data"), "--ready-file", str(ready))
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (1, "")
    assert f"cannot start: cannot write the ready file {ready}: No such file or directory" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_up_refuses_a_data_directory_in_use_with_one_line(up, tmp_path):
    first = up("--data", str(tmp_path / "data"))
    assert first.stdout.readline().startswith("ready")
    second = up("--data", str(tmp_path / "data"))
    out, err = second.communicate(timeout=300)
    assert second.returncode == 1
    assert out == ""
    assert f"process {first.pid}" in err
    assert "Traceback" not in err
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=300)
    assert first.returncode == 0


@pytest.mark.slow
def test_up_refuses_a_bad_setting_with_one_line(up):
    process = up("--set", "num.partitions=none")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert out == ""
    assert "num.partitions" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once(up, tmp_path):
    process = up("--data", str(tmp_path / "data"))
    assert process.stdout.readline().startswith("ready")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode in (0, 130, 143), "pending signals have no order"
