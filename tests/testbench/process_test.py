"""A server as a process: one that has ended by itself is named, with its log."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from threading import Thread

import pytest
from testbench.apache_kafka.broker import KafkaNode
from testbench.ports import free_port
from testbench.process import ManagedProcess, NodeError


def test_a_process_that_is_gone_says_how_it_ended(tmp_path: Path) -> None:
    server = ManagedProcess("a server", tmp_path / "log")
    server.launch([sys.executable, "-c", "import sys; sys.stderr.write('no memory left\\n'); sys.exit(3)"])
    with pytest.raises(NodeError, match="ended before it was ready"):
        server.await_ready(lambda: False, 60)
    with pytest.raises(NodeError, match=r"a server is gone, with exit code 3:\nno memory left"):
        server.must_live()
    server.kill()


def test_a_process_that_runs_is_left_alone(tmp_path: Path) -> None:
    server = ManagedProcess("a server", tmp_path / "log")
    server.launch([sys.executable, "-c", "import sys; sys.stdin.read(); import time; time.sleep(600)"])
    server.must_live()
    server.kill()


def test_the_end_of_kafkas_own_log_is_shown(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path)
    (tmp_path / "stdout.log").write_text("Killed\n")
    (tmp_path / "server.log").write_text("first\n" * 50 + "halting: log directory gone\n")
    assert node.tail(2) == "Killed\nfirst\nhalting: log directory gone"


def _answering(listener: socket.socket) -> None:
    """Answer ApiVersions as far as the check of readiness reads, until the listener is shut down."""
    while True:
        try:
            taken, _ = listener.accept()
        except OSError:
            return
        with taken:
            taken.recv(100)
            taken.sendall(b"\0\0\0\x06\0\0\0\x07\0\0")


def test_a_node_is_ready_when_each_of_its_listeners_is(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path)
    later = free_port()
    node.settings = {"listeners": f"PLAINTEXT://127.0.0.1:{node.port},SSL://127.0.0.1:{later}"}
    with socket.create_server(("127.0.0.1", node.port)) as plain:
        thread = Thread(target=_answering, args=(plain,))
        thread.start()
        try:
            assert not node.ready()
            with socket.create_server(("127.0.0.1", later)):
                assert node.ready()
        finally:
            plain.shutdown(socket.SHUT_RDWR)
            thread.join()
