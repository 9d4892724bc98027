"""Members of one consumer group as separate processes: started, killed, and watched.

Zone: real.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ottla.client import ClientConfig, ClientError, Cluster
from ottla.client.admin.groups import GroupAdmin
from testbench import java_program, programs

ROOT = Path(__file__).resolve().parent.parent
WAIT_S = 180


def command(library: str) -> list[str]:
    """The command of a member with this library, without its arguments. Raises BenchError if a program is missing."""
    if library.startswith("java-"):
        return java_program.command("GroupMember", version=library.removeprefix("java-"))
    if library == "kafkajs":
        return programs.kafkajs_member()
    if library == "franz-go":
        return programs.franz_go_member()
    return [sys.executable, "-m", "testbench.member", library]


class MemberProcess:
    """One member. Its events are read from the file of its output."""

    def __init__(self, log: Path, library: str, bootstrap: str, group: str, topic: str, instance: str | None) -> None:
        self.library = library
        self.instance = instance
        self._log = log
        words = [*command(library), bootstrap, group, topic]
        with log.open("w") as output, log.with_suffix(".err").open("w") as errors:
            self._process = subprocess.Popen(
                words + ([instance] if instance else []), stdin=subprocess.PIPE, stdout=output, stderr=errors, cwd=ROOT
            )

    @property
    def events(self) -> list[list[Any]]:
        """All its events."""
        lines = self._log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def owns(self) -> list[int]:
        """Its present partitions."""
        return next((event[1] for event in reversed(self.events) if event[0] == "owns"), [])

    @property
    def read(self) -> list[tuple[int, int, str]]:
        """(partition, offset, value) of all records that it has read."""
        return [tuple(event[1:]) for event in self.events if event[0] == "read"]  # type: ignore[misc]

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: it does not leave the group."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def leave(self) -> None:
        """End it; it leaves the group."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)

    def said(self) -> str:
        """Its output, for a report."""
        return f"{self.library}: {self._log.with_suffix('.err').read_text()[-1000:]} {self.events[-5:]}"


def owned_twice(said: Mapping[str, Sequence[list[Any]]]) -> list[str]:
    """Partitions that more than one member has had in one generation, and members with partitions in no generation.

    `said`: the events of each member.
    """
    owners: dict[tuple[int, int], set[str]] = defaultdict(set)
    for name, events in said.items():
        for event in events:
            if event[0] == "owns":
                for partition in event[1]:
                    owners[event[2], partition].add(name)
    return [
        f"generation {generation}, partition {partition}: {sorted(names)}"
        for (generation, partition), names in sorted(owners.items())
        if len(names) > 1 or generation < 0
    ]


class Party:
    """All members of a group. Use as a context manager."""

    def __init__(self, directory: Path, bootstrap: str, group: str, topic: str) -> None:
        self._directory = directory
        self._bootstrap, self._group, self._topic = bootstrap, group, topic
        self.members: list[MemberProcess] = []

    def __enter__(self) -> Party:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if member.alive:
                member.kill()

    def add(self, library: str, instance: str | None = None) -> MemberProcess:
        """Start one more member."""
        log = self._directory / f"member{len(self.members)}.log"
        member = MemberProcess(log, library, self._bootstrap, self._group, self._topic, instance)
        self.members.append(member)
        return member

    @property
    def living(self) -> Sequence[MemberProcess]:
        """Members that are running."""
        return [member for member in self.members if member.alive]

    def await_that(self, what: str, condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Wait until a condition holds. Raises AssertionError."""
        deadline = time.monotonic() + wait_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {wait_s} s: {what}\n{self._report()}"
            time.sleep(0.1)

    def _report(self) -> str:
        """The events of the members, and the group as its coordinator has it."""
        said = [member.said() for member in self.members]
        with Cluster(ClientConfig(bootstrap_servers=self._bootstrap)) as cluster:
            try:
                said.append(str(GroupAdmin(cluster).describe_group(self._group)))
            except ClientError as error:
                said.append(str(error))
        return "\n".join(said)

    def await_shared(self, partitions: int) -> None:
        """Wait until each partition has exactly one owner, and each member has partitions."""

        def shared() -> bool:
            owned = [member.owns for member in self.living]
            return all(owned) and sorted(each for some in owned for each in some) == list(range(partitions))

        self.await_that("each partition has one owner", shared)

    def await_calm(self, calm_s: float = 3) -> None:
        """Wait until no assignment changes for a while: a library may join again after a stable generation."""
        last, since = -1, time.monotonic()

        def calm() -> bool:
            nonlocal last, since
            count = sum(event[0] == "owns" for member in self.members for event in member.events)
            if count != last:
                last, since = count, time.monotonic()
            return time.monotonic() - since >= calm_s

        self.await_that(f"no rebalance for {calm_s} s", calm)

    def owned_twice(self) -> list[str]:
        """Violations, see `owned_twice`. A static member counts as the same member after a restart."""
        said: dict[str, list[list[Any]]] = defaultdict(list)
        for number, member in enumerate(self.members):
            said[member.instance or f"{member.library} ({number})"] += member.events
        return owned_twice(said)

    @property
    def generations(self) -> list[int]:
        """All generations with assigned partitions, in order."""
        events = (event for member in self.members for event in member.events if event[0] == "owns" and event[1])
        return sorted({event[2] for event in events})

    def values(self) -> set[str]:
        """All records that the members have read."""
        return {value for member in self.members for _, _, value in member.read}
