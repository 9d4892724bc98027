"""A real Redis server for tests: with an append-only file, killed and started again on the same port.

Zone: real.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import redis


class RedisServer:
    """`start` it; `kill` it in the middle; `start` it again, with its data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        """A connection of the test's own."""
        return redis.Redis(port=self.port)

    def start(self) -> None:
        """Wait until it answers. Raises FileNotFoundError where Redis is not installed: see testbench/setup."""
        program = shutil.which("redis-server", path="/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin")
        if program is None:
            raise FileNotFoundError("redis-server is not installed: run testbench/setup, or install Redis")
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory),
                   "--appendonly", "yes", "--appendfsync", "always", "--save", ""]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        connection = self.client()
        for _ in range(500):
            try:
                connection.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.02)
        connection.close()

    def kill(self, *, lose: bool = False) -> None:
        """Kill it, as a power failure does; `lose`: also delete its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
        if lose:
            shutil.rmtree(self._directory)
            self._directory.mkdir()
