"""Starts Spark's Java process, and ends it completely.

Zone: real. PySpark would start Java itself, but then waits for it, lets it write to the terminal, and does not end it
when interrupted. Here it starts in the background, writes to a file, and is always ended. PySpark connects to it with
the variables for programs that start its gateway themselves (PYSPARK_GATEWAY_PORT).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ottla
from ottla.spark.environment import THREADS
from ottla.spark.java import java_home

_START_S = 90
_END_S = 10
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.file.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
_NOT_OURS = ("SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON")


class SparkFailed(RuntimeError):
    """Spark did not start, or a query failed; the text ends with the last lines of its log."""


class SparkProcess:
    """One Spark. `directory`: for all its files; the caller removes it.

    settings: of Spark; they override those set here. Without `spark.master`, Spark runs on this machine.
    """

    def __init__(self, directory: Path, cores: int, settings: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._is_here = "spark.master" not in (settings or {})
        self._settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.session.timeZone": "UTC",
            **(self._local_settings(cores) if self._is_here else {}),
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._session: Any = None

    def _local_settings(self, cores: int) -> dict[str, str]:
        """Settings for a Spark on this machine only."""
        return {
            "spark.master": f"local[{cores},4]",  # a task may fail four times, as on a cluster
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(self._directory / "local"),
            "spark.sql.shuffle.partitions": str(cores),
        }

    @property
    def pid(self) -> int:
        """Java's process, whose children the workers are."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether Java is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def _log(self) -> Path:
        return self._directory / "spark.log"

    @property
    def _handover(self) -> Path:
        return self._directory / "gateway"

    def start_java(self) -> None:
        """Start Java and return at once. Raises NoJava."""
        home = Path(_pyspark_home())
        (self._directory / "log4j2.properties").write_text(_LOGGING, "utf-8")
        java = (
            f"-Dlog4j2.configurationFile=file:{self._directory / 'log4j2.properties'} "
            f"-Djava.io.tmpdir={self._directory} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        )
        words = [str(home / "bin" / "spark-submit"), "--driver-java-options", java]
        for key, value in self._settings.items():
            words += ["--conf", f"{key}={value}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*words, "pyspark-shell"],
                stdin=subprocess.PIPE,  # Java ends when this pipe is closed, so that it cannot outlive this process
                stdout=log,
                stderr=log,
                env=self._make_environment(home),
                cwd=self._directory,
                start_new_session=True,  # Ctrl-C in the terminal is for this process; it ends Java in its own time
            )

    def _make_environment(self, home: Path) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key not in _NOT_OURS}
        environment = {THREADS: "1"} | inherited
        return environment | {
            "JAVA_HOME": java_home(),
            "SPARK_HOME": str(home),
            **({"SPARK_LOCAL_IP": "127.0.0.1"} if self._is_here else {}),
            "SPARK_CONNECT_MODE": "0",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [_package_path(), os.environ.get("PYTHONPATH", "")])),
            "PYTHONWARNINGS": "ignore",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._handover),
        }

    def get_session(self) -> Any:
        """The SparkSession; waits for Java. Raises SparkFailed."""
        if self._session is None:
            port, secret = self._read_gateway()
            ours = {
                "PYSPARK_GATEWAY_PORT": str(port),
                "PYSPARK_GATEWAY_SECRET": secret,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": _pyspark_home(),
            }
            # PySpark reads these variables once, when it connects; programs that this process starts must not inherit
            # them.
            before = {key: os.environ.get(key) for key in ours}
            os.environ.update(ours)
            try:
                self._session = _new_session()
            finally:
                _restore_environment(before)
        return self._session

    def _read_gateway(self) -> tuple[int, str]:
        """The port and secret of the gateway; waits until Java has written them. Raises SparkFailed."""
        assert self._process is not None
        until = time.monotonic() + _START_S
        while not self._handover.is_file():
            if self._process.poll() is not None or time.monotonic() > until:
                raise self.make_failure("Spark did not start")
            time.sleep(0.05)
        told = self._handover.read_bytes()
        # Spark's PythonGatewayServer writes: port (int32) · length of the secret (int32) · secret in UTF-8. It renames
        # the file when that is complete, so that it is never read half.
        size = int.from_bytes(told[4:8], "big")
        return int.from_bytes(told[:4], "big"), told[8 : 8 + size].decode("utf-8")

    def make_failure(self, what: str) -> SparkFailed:
        """An error with the end of Spark's log."""
        text = self._log.read_text("utf-8", "replace") if self._log.is_file() else ""
        last = [line for line in text.splitlines() if line.strip()][-15:]
        return SparkFailed("\n  ".join([f"{what}; the end of its log:" if last else what, *last]))

    def stop_spark(self) -> None:
        """End Spark and Java, by force if need be. Idempotent."""
        # First let it end by itself: stop the session, then close Java's standard input. Java's process group is killed
        # in any case.
        session, self._session = self._session, None
        process, self._process = self._process, None
        if session is not None:
            _end_session(session)
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _package_path() -> str:
    """The directory that this package is imported from, for Spark's workers."""
    return str(Path(ottla.__file__).resolve().parent.parent)


def _pyspark_home() -> str:
    import pyspark  # noqa: PLC0415 - slow to import, and only needed here

    return str(Path(pyspark.__file__).parent)


def _new_session() -> Any:
    interrupted = signal.getsignal(signal.SIGINT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark warns about versions of pandas, which is not used
        from pyspark.sql import SparkSession  # noqa: PLC0415

        session = SparkSession.builder.getOrCreate()
    signal.signal(signal.SIGINT, interrupted)  # PySpark's own handler would call Java from within a call to Java
    return session


def _end_session(session: Any) -> None:
    """Stop a session and drop its gateway, so that another one can start. After an interrupt, parts may have ended."""
    from pyspark import SparkContext  # noqa: PLC0415

    with contextlib.suppress(Exception):
        session.stop()
    gateway = SparkContext._gateway
    # PySpark keeps both after `stop`, and the next SparkContext would use the gateway that has ended.
    SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(Exception):
        gateway.shutdown()


def _restore_environment(before: Mapping[str, str | None]) -> None:
    for key, value in before.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
