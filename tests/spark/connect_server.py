"""A server of Spark Connect, and users' programs with sessions on it, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyspark
from testbench.ports import HOST, free_port
from testbench.spark_archive import short_run_options

from ottla.spark import java_home

_ROOT: Final = Path(__file__).resolve().parents[2]
_PROGRAMS: Final = Path(__file__).with_name("connect_programs.py")
_START_S: Final = 120
_RUN_S: Final = 300


class ConnectServer:
    """A server at a port that stays the same when it is started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"sc://{HOST}:{self._port}"

    def start(self) -> None:
        """Start it, unless it is running, and wait until it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        home = Path(pyspark.__file__).parent
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": HOST,
            "spark.driver.memory": "1g",
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(self._directory / "local"),
            "spark.sql.warehouse.dir": str(self._directory / "warehouse"),
        }
        words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        words += ["--master", "local[2]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [home / "bin" / "spark-submit", *words, "spark-internal"],
                cwd=self._directory, env=_environment(), stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._await_port()

    def run(self, program: str, **words: Any) -> Any:
        """Run a program of `connect_programs` to its end; its result."""
        with self._start_program(program, words) as started:
            output, errors = started.communicate(timeout=_RUN_S)
        assert started.returncode == 0, errors[-6000:] + self._log.read_text("utf-8", "replace")[-6000:]
        return json.loads(output.splitlines()[-1])["result"]

    def run_until_killed(self, program: str, **words: Any) -> None:
        """Run a program that kills the server, and end the processes that are left."""
        assert self._process is not None
        with self._start_program(program, words) as started:
            try:
                self._process.wait(_RUN_S)
            finally:
                started.kill()  # it would try for ten minutes to reach the server
        self.stop()

    def _start_program(self, program: str, words: Mapping[str, Any]) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", str(_PROGRAMS), self.url, program, json.dumps(words)]
        return subprocess.Popen(
            command, cwd=self._directory, env=_environment(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def _log(self) -> Path:
        return self._directory / "server.log"

    def _await_port(self) -> None:
        assert self._process is not None
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self._port), 1):
                return
            time.sleep(0.05)
        raise AssertionError(self._log.read_text("utf-8", "replace")[-6000:])


def _environment() -> dict[str, str]:
    paths = [str(_ROOT / "src"), str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore",
        "SPARK_LOCAL_IP": HOST,
        "SPARK_SUBMIT_OPTS": short_run_options(),
    }
