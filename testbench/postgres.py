"""PostgreSQL from Debian's package: a private server for tests, which may be killed at any moment.

Zone: real. Finds its programs and its user, starts and kills it; independent of the sink.

PostgreSQL refuses to run as root, so as root it is started as another user, in a directory of that user. It does not
sync: tests only kill processes, which the page cache survives.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final

import psycopg

from testbench.apache_kafka.packages import BenchError
from testbench.ports import HOST, free_port
from testbench.process import ManagedProcess, NodeError

_KILL_S: Final = 60
"""How long a backend may take to end after SIGKILL."""
_USERS: Final = ("postgres", "nobody")
_SETTINGS: Final = {
    "listen_addresses": HOST,
    "fsync": "off",
    "max_connections": "30",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}


class Postgres(ManagedProcess):
    """One server with one database, `postgres`, open to all users of this machine. Settings are the server's own."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        """Raises BenchError when it is not installed."""
        self._programs = programs()
        self.directory = Path(tempfile.mkdtemp(prefix="ottla-postgres-"))
        self._settings = {**_SETTINGS, **(settings or {})}
        super().__init__("PostgreSQL", self.directory.with_name(self.directory.name + ".log"), _as_somebody())
        self.port = free_port()
        if self._prefix:
            shutil.chown(self.directory, _somebody())
        command = [
            str(self._programs / "initdb"),
            "--auth=trust",
            "--username=postgres",
            "--no-sync",
            "--encoding=UTF8",
        ]
        subprocess.run(
            [*self._prefix, *command, "--locale=C", str(self.data)], check=True, capture_output=True, cwd=self.directory
        )

    @property
    def data(self) -> Path:
        """Its data directory."""
        return self.directory / "data"

    @property
    def conninfo(self) -> str:
        """How to connect."""
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    def start(self, wait_s: float = 180) -> None:
        """Start, and wait until it accepts connections, after recovery from a kill. Raises NodeError."""
        words = [str(self._programs / "postgres"), "-D", str(self.data), "-p", str(self.port)]
        for key, value in {**self._settings, "unix_socket_directories": str(self.directory)}.items():
            words += ["-c", f"{key}={value}"]
        self.launch(words)
        self.await_ready(self._answers, wait_s, 0.02)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.conninfo, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, wait_s: float = 180) -> None:
        """Stop it and end its connections; with SIGTERM it would wait for the last client. Raises NodeError."""
        if self.alive:
            os.kill(self.pid, signal.SIGINT)
        super().stop(wait_s)

    def kill(self) -> None:
        """SIGKILL to the server and all its backends, which have their own sessions and could finish a commit.

        Raises NodeError when a backend does not end.
        """
        backends: list[str] = []
        if self.alive:
            os.kill(self.pid, signal.SIGSTOP)  # no new backends from here on
            backends = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            for each in backends:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(each), signal.SIGKILL)
        super().kill()
        # The server does not start again while a backend holds the shared memory.
        deadline = time.monotonic() + _KILL_S
        while any(map(_is_running, backends)):
            if time.monotonic() > deadline:
                raise NodeError(f"a backend of {self.name} runs {_KILL_S} s after SIGKILL")
            time.sleep(0.01)

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Rows of a statement, on a new connection."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Kill it, and remove its files."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.log.unlink(missing_ok=True)

    def __enter__(self) -> Postgres:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def programs() -> Path:
    """The directory of initdb and postgres, which Debian does not add to PATH. Raises BenchError."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name))
    if found := shutil.which("initdb"):
        installed.append(Path(found).resolve().parent)
    for directory in reversed(installed):
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    raise BenchError("PostgreSQL's server is missing: run testbench/setup (Debian: apt-get install postgresql)")


def _somebody() -> str:
    """A user that is not root."""
    known = {each.pw_name for each in pwd.getpwall()}
    return next((each for each in _USERS if each in known), _USERS[-1])


def _as_somebody() -> list[str]:
    """Prefix of a command so that it does not run as root."""
    if os.geteuid():
        return []
    user = pwd.getpwnam(_somebody())
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _is_running(pid: str) -> bool:
    """Whether the process runs. A zombie does not: it has released its memory."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
