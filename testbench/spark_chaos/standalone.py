"""A standalone Spark cluster on this machine: a master and two workers, each with its own address.

Zone: real. Two addresses, because Spark starts a speculative twin only on another host.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from testbench.ports import HOST, free_port
from testbench.spark_archive import short_run_options

HOSTS = ("127.0.0.1", "127.0.0.2")
START_S = 180


class Standalone:
    """Started by the constructor; `stop` ends it."""

    def __init__(self, directory: Path) -> None:
        from ottla.spark import java_home

        java_home()
        directory.mkdir(parents=True)
        self._directory = directory
        self._port = free_port()
        self.master = f"spark://{HOST}:{self._port}"
        master = ["org.apache.spark.deploy.master.Master", "--host", HOST, "--port", str(self._port)]
        self._processes = [self._launch("master", [*master, "--webui-port", str(free_port())])]
        for number, host in enumerate(HOSTS):
            words = ["org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "2", "--memory", "2g"]
            words += ["--work-dir", str(directory / f"work-{number}"), "--webui-port", str(free_port()), self.master]
            self._processes.append(self._launch(f"worker-{number}", words))
        self._await_workers()

    def stop(self) -> None:
        """End all processes."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()

    def _launch(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_JAVA_OPTS": short_run_options(),
        }
        with (self._directory / f"{name}.log").open("ab") as log:
            command = [str(home / "bin" / "spark-class"), *words]
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _await_workers(self) -> None:
        log, deadline = self._directory / "master.log", time.monotonic() + START_S
        while log.read_text().count("Registering worker") < len(HOSTS):
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the Spark cluster did not start: {log.read_text()[-1000:]}")
            time.sleep(0.2)
