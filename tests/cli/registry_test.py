"""`ottla registry`: wrong files, addresses and ports are named, and Ctrl-C ends it.

Zone: real.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ottla

GONE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("content", "reason"),
    [("", "each line is USER:PASSWORD"), ("ada", "each line is"), ("ada:x\nada:y", "no user may be there twice")],
)
def test_a_file_without_users_is_refused(ottla: Ottla, tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "users").write_text(content)
    shown = ottla("registry", "--users", str(tmp_path / "users"), "-b", GONE)
    assert shown.exit_code == 1
    assert reason in shown.stderr


def test_a_certificate_that_is_none_is_refused(ottla: Ottla, tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("x")
    shown = ottla("registry", "--tls-cert", str(tmp_path / "cert"), "-b", GONE)
    assert shown.exit_code == 1
    assert "not a PEM certificate" in shown.stderr


def test_a_cluster_that_is_not_there_is_named(ottla: Ottla) -> None:
    shown = ottla("registry", "--port", "0", "-b", GONE)
    assert shown.exit_code in (1, 5)
    assert GONE in shown.stderr


def test_a_port_in_use_is_named(ottla: Ottla) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        shown = ottla("registry", "--port", str(taken.getsockname()[1]))
    assert shown.exit_code == 1
    assert "address already in use" in shown.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(process: Callable[..., subprocess.Popen[bytes]], number: signal.Signals) -> None:
    started = process("registry", "--port", "0")
    assert started.stderr is not None
    assert b"schema registry ready at http://127.0.0.1:" in started.stderr.readline()
    started.send_signal(number)
    assert started.wait(60) == 0


@pytest.mark.parametrize("url", ["localhost:8081", "ftp://x"])
def test_consume_refuses_what_is_no_address(ottla: Ottla, url: str) -> None:
    shown = ottla("consume", "any", "--exit-at-end", "--schema-registry", url)
    assert shown.exit_code == 1
    assert "is not the address of a registry" in shown.stderr
