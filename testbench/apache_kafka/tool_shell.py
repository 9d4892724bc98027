"""Apache Kafka's command line tools in one JVM that starts once: testbench/java/ToolShell.java.

Zone: real.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from types import TracebackType
from typing import Final

from testbench import java_program
from testbench.apache_kafka.tools import main_class, tools_part

ANSWER_S: Final = 120
"""How long a tool may take."""
_END: Final = "\x04"


class ToolShell:
    """The tools of one version of Apache Kafka. Use as a context manager. Raises BenchError when they are missing."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._process = subprocess.Popen(
            java_program.command("ToolShell", version=version, part=tools_part(version)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._pass_lines, daemon=True).start()

    def run(self, name: str, *words: str) -> tuple[int, str]:
        """The exit code of a tool, and what it has printed. Raises queue.Empty when it does not end in time."""
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join((main_class(self.version, name), *words)) + "\n")
        self._process.stdin.flush()
        said: list[str] = []
        while not (line := self._lines.get(timeout=ANSWER_S)).startswith(_END):
            said.append(line)
        return int(line[1:]), "\n".join(said).rstrip("\n")

    def _pass_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(f"{_END}1")

    def __enter__(self) -> ToolShell:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
