"""`make test`: lint and all tests, in parts that three lanes run side by side.

Zone: real. The first lane has lint and the tests that need only Python, the second those with Spark, the third those
with other third-party clients and tools, and those that need root. A lane without parts takes the last one of the lane
with the most, so that all end together. What third-party tests need is installed while the first lane has begun. The
tests that wait for a disk most of their time run beside all lanes.

The tests of a part always run in the same order, so that results of two runs can be compared. The output of a part is
printed when the part ends, and the tests that failed are named again at the end of the whole.

Third-party clients have time limits of their own, which they miss on a machine that is busy with all lanes. So a few
failed tests of theirs run once more, alone, after all parts; the output names those that passed only then. Tests that
need only Python have one try.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
THIRD_PARTY: Final = "interop or kafka or spark or root"
"""Markers of tests that need more than Python."""
PYTHON: Final = f"not ({THIRD_PARTY}) and not disk"
CLIENTS: Final = f"({THIRD_PARTY}) and not disk and not root"
AS_ROOT: Final = "root and not disk"
DISK: Final = "disk"
LARGE: Final = (
    "sim", "broker", "client", "cluster", "server", "cli", "spark", "tables", "storage", "security", "record", "wire",
    "replication", "contract",
)  # fmt: skip
"""Directories of tests that need only Python, each of them a part; the longest first, so that none is left alone at
the end."""
WITH_ROOT: Final = ("tests/faults", "tests/server", "tests/testbench")
"""Directories of the tests that need root: collecting all others takes a minute."""
WITH_DISK: Final = ("tests/faults",)
SPARK_PARTS: Final = 4
INTEROP_PARTS: Final = 4
TESTS_FAILED: Final = 1
"""Exit code of pytest when it ran to its end, and tests failed."""
NOTHING_CHOSEN: Final = 5
"""Exit code of pytest when no test was chosen."""
SECOND_TRIES: Final = 6
"""Maximum of tests with third-party programs that run again. More have failed for another reason than a time limit."""
GRACE_S: Final = 60
"""Seconds within which a part that was interrupted must have stopped its brokers."""


_OPTIONS: Final = ("--randomly-seed=1", "--tb=short", "--show-capture=log", "--durations=12", "--color=no")


class Part(NamedTuple):
    """A command, and the name under which its output is printed."""

    name: str
    words: tuple[str, ...]
    is_tried_twice: bool = False
    """Whether its tests run third-party programs."""


def chosen(name: str, which: str, paths: Iterable[str], ignored: Iterable[str] = ()) -> Part:
    """The tests below `paths` that the marker expression `which` chooses."""
    words = (sys.executable, "-m", "pytest", *paths, *(f"--ignore={path}" for path in ignored), "-m", which, *_OPTIONS)
    return Part(f"{name} ({which})", words, which == CLIENTS)


def pieces(directory: str, count: int, which: str) -> list[Part]:
    """The files of tests in a directory, and below it, in `count` parts."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / directory).rglob("*_test.py"))
    return [chosen(f"{directory}, {n + 1} of {count}", which, files[n::count]) for n in range(count)]


def python_parts() -> list[Part]:
    """Lint, and the tests that need only Python."""
    large = [f"tests/{name}" for name in LARGE]
    lint = Part("lint", ("make", "--no-print-directory", "lint"))
    others = chosen("the others", PYTHON, ["tests"], large)
    return [lint, others, *(chosen(path, PYTHON, [path]) for path in large)]


def spark_parts() -> list[Part]:
    """The tests in tests/spark that start PySpark."""
    return pieces("tests/spark", SPARK_PARTS, CLIENTS)


def client_parts() -> list[Part]:
    """All other tests with third-party clients and tools."""
    alone = ["tests/client", "tests/contract", "tests/faults", "tests/retry"]
    return [
        *pieces("tests/interop", INTEROP_PARTS, CLIENTS),
        *(chosen(path, CLIENTS, [path]) for path in alone),
        chosen("the others", CLIENTS, ["tests"], [*alone, "tests/interop", "tests/spark"]),
        chosen("with root", AS_ROOT, WITH_ROOT),
    ]


class Lanes:
    """Parts in lanes, their processes and results."""

    def __init__(self, lanes: Sequence[Sequence[Part]], logs: Path) -> None:
        self._waiting = [list(lane) for lane in lanes]
        self._open = list[list[Part]]()
        """The lanes that were started: parts of the others may need what is not installed yet."""
        self._count = sum(map(len, lanes))
        self._logs = logs
        self._lock = threading.Lock()
        self._running: dict[Part, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._begun = time.monotonic()
        self._is_stopped = False
        self.codes: dict[Part, int] = {}
        self.failures: dict[Part, list[str]] = {}
        """The lines in which pytest names tests that failed."""

    def start(self, number: int) -> None:
        """Begin with the parts of a lane."""
        with self._lock:
            self._open.append(self._waiting[number])
        self._threads.append(threading.Thread(target=self._run_lane, args=(number,), name=f"lane-{number}"))
        self._threads[-1].start()

    def join(self) -> None:
        """Wait until all lanes that were started are at their end."""
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Begin nothing more, and end what runs. A part has `GRACE_S` seconds to stop what it started."""
        with self._lock:
            self._is_stopped = True
            running = list(self._running.values())
        for process in running:
            process.send_signal(signal.SIGINT)
        until = time.monotonic() + GRACE_S
        for process in running:
            try:
                process.wait(max(0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self.join()

    def _run_lane(self, number: int) -> None:
        while (started := self._start_next(number)) is not None:
            part, process, log = started
            code = process.wait()
            with self._lock:
                del self._running[part]
                self.codes[part] = code
                self._show(part, code, log)

    def _start_next(self, number: int) -> tuple[Part, subprocess.Popen[bytes], Path] | None:
        with self._lock:
            part = self._take(number)
            if part is None:
                return None
            log = self._logs / f"{self._count - sum(map(len, self._waiting))}"
            with log.open("wb") as output:
                # In a group of its own: Ctrl-C reaches this process only, which then interrupts each part once.
                self._running[part] = subprocess.Popen(
                    part.words, cwd=ROOT, stdout=output, stderr=output, process_group=0
                )
            return part, self._running[part], log

    def _take(self, number: int) -> Part | None:
        """The next part of a lane, or else the last of the lane with the most parts."""
        if self._is_stopped:
            return None
        if self._waiting[number]:
            return self._waiting[number].pop(0)
        longest = max(self._open, key=len)
        return longest.pop() if longest else None

    def _show(self, part: Part, code: int, log: Path) -> None:
        """Print the output of a part; what was ended from outside has none that matters."""
        if self._is_stopped:
            return
        took = f"{time.monotonic() - self._begun:.0f} s after the start"
        text = log.read_text(errors="replace")
        self.failures[part] = [line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        print(text, end="")
        print(f"=== {len(self.codes)} of {self._count}: {part.name}: exit code {code}, {took}", flush=True)


def failed(codes: dict[Part, int]) -> list[str]:
    """The names of the parts that failed. A part may have no tests, but not all of them."""
    bad = [part.name for part, code in codes.items() if code not in (0, NOTHING_CHOSEN)]
    return bad or (["no test was chosen"] if all(code == NOTHING_CHOSEN for code in codes.values()) else [])


def try_again(lanes: Lanes) -> None:
    """Run failed tests of third-party clients once more; parts of which all pass then have passed."""
    parts = [part for part, code in lanes.codes.items() if part.is_tried_twice and code == TESTS_FAILED]
    lines = [line for part in parts for line in lanes.failures[part]]
    if not lines or len(lines) > SECOND_TRIES:
        return
    tests = [line.partition(" ")[2].partition(" - ")[0] for line in lines]
    print("=== a second run, alone, of", *tests, sep="\n  ", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", *tests, *_OPTIONS], cwd=ROOT, check=False).returncode
    if code == 0:
        print("=== passed only in the second run:", *tests, sep="\n  ", flush=True)
        lanes.codes.update(dict.fromkeys(parts, 0))


def main() -> int:
    """Run everything. 0 when lint and all tests passed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    disk = [chosen("with a slow disk", DISK, WITH_DISK)]
    lanes = [python_parts(), spark_parts(), client_parts(), disk]
    with tempfile.TemporaryDirectory(prefix="ottla-tests-") as place:
        running = Lanes(lanes, Path(place))
        try:
            return _run(running, len(lanes))
        except KeyboardInterrupt:
            running.stop()
            return 130


def _run(lanes: Lanes, count: int) -> int:
    lanes.start(0)
    if subprocess.run(["testbench/setup"], cwd=ROOT, check=False).returncode != 0:
        lanes.stop()
        return 1
    archive = [sys.executable, "-m", "testbench.spark_archive"]
    os.environ["SPARK_SUBMIT_OPTS"] = subprocess.run(
        archive, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    for number in range(1, count):
        lanes.start(number)
    lanes.join()
    try_again(lanes)
    if bad := failed(lanes.codes):
        print("failed, see above:", *bad, *itertools.chain(*lanes.failures.values()), sep="\n  ", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
