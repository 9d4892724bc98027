"""A thousand groups of ten members on one broker: their heartbeats, and the rebalance of one of them.

Each member has its own connection, as in reality. A rebalance is measured from the first request of the member that
starts it until the last one has its assignment. The others do not wait for their next heartbeat (heartbeat.interval.ms,
3 s), which is a configured delay: they send one at once.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from testbench.apache_kafka.packages import BenchError

from bench.peers import Cpu, Peer
from bench.wire import Connection, Crowd, Script, allow_connections, frame_of
from ottla.wire.messages import FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

SESSION_MS = 600_000
"""Long: members are silent while something else is measured."""
REBALANCE_MS = 60_000
HEARTBEAT_S = 3.0
"""Kafka's heartbeat.interval.ms."""
TICK_S = 0.001
JOIN_VERSION = 9
SYNC_VERSION = 5
HEARTBEAT_VERSION = 4
_AGAIN = (14, 15, 16)
_MEMBER_ID_REQUIRED = 79
_REBALANCE_IN_PROGRESS = 27
_ASSIGNMENT = b"\0\0" + b"\0\0\0\1\0\6orders\0\0\0\1\0\0\0\0" + b"\xff\xff\xff\xff"
"""Version 0: partition 0 of a topic."""
_code_at = struct.Struct(">h").unpack_from
_CODE_POS = 4 + 1 + 4
"""Position of the error code in the answer to a heartbeat: after correlation id, tags and throttle time."""


def _subscription(number: int) -> bytes:
    """The metadata of a member; another number makes other metadata, which starts a rebalance."""
    return b"\0\0" + b"\0\0\0\1\0\6orders" + struct.pack(">ii", 4, number)


@dataclass
class Group:
    """A group, from the view of its members."""

    name: str
    members: list[Member] = field(default_factory=list)
    changes: int = 0
    """Rebalances that a change of metadata started."""


@dataclass
class Member:
    """A member of a group."""

    group: Group
    line: Connection
    member_id: str = ""
    generation: int = -1
    heartbeat: bytes = b""
    """Its encoded heartbeat request."""

    def join(self, number: int) -> Script:
        """Join and get an assignment."""
        joined = yield from self._join(number)
        assignments = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=each.member_id, assignment=_ASSIGNMENT)
            for each in joined.members
        ]
        request = SyncGroupRequest(
            group_id=self.group.name,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        synced = yield request, SYNC_VERSION
        if synced.error_code:
            raise BenchError(f"SyncGroup met error {synced.error_code}")
        if synced.assignment != _ASSIGNMENT:
            raise BenchError("a member got another assignment than its leader sent")
        self.generation = joined.generation_id
        self.heartbeat = frame_of(self._heartbeat(), HEARTBEAT_VERSION)

    def _join(self, number: int) -> Script:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=_subscription(number))
        while True:
            request = JoinGroupRequest(
                group_id=self.group.name,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[protocol],
            )
            joined = yield request, JOIN_VERSION
            self.member_id = joined.member_id or self.member_id
            if not joined.error_code:
                return joined
            if joined.error_code in _AGAIN:
                yield 0.05
            elif joined.error_code != _MEMBER_ID_REQUIRED:
                raise BenchError(f"JoinGroup met error {joined.error_code}")

    def _heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(group_id=self.group.name, generation_id=self.generation, member_id=self.member_id)

    def follow(self) -> Script:
        """Learn of a rebalance by a heartbeat, and join."""
        while True:
            response = yield self._heartbeat(), HEARTBEAT_VERSION
            if response.error_code == _REBALANCE_IN_PROGRESS:
                break
            if response.error_code:
                raise BenchError(f"Heartbeat met error {response.error_code}")
        yield from self.join(self.group.changes)


def await_groups(port: int, crowd: Crowd) -> None:
    """Wait for the coordinator of groups; the first request creates its topic. Raises BenchError."""

    def ask() -> Script:
        while True:
            found = yield FindCoordinatorRequest(key_type=0, coordinator_keys=["any"]), 4
            if not found.coordinators[0].error_code:
                return
            yield 0.05

    crowd.run([(crowd.connect(port), ask())], 60, "finding the coordinator")


class Groups:
    """All groups on one broker."""

    def __init__(self, peer: Peer, groups: int, size: int) -> None:
        """Let all members join."""
        allow_connections(groups * size)
        self.peer = peer
        self._crowd = Crowd()
        await_groups(peer.port, self._crowd)
        self._groups = [Group(f"group-{at}") for at in range(groups)]
        for group in self._groups:
            group.members = [Member(group, self._crowd.connect(peer.port)) for _ in range(size)]
        self._members = [member for group in self._groups for member in group.members]
        # Ordered by the index in their group: neighbours in the order of heartbeats belong to different groups.
        self._members.sort(key=lambda member: member.group.members.index(member))
        self._crowd.run([(member.line, member.join(0)) for member in self._members], 120, "joining")
        self._beats = 0
        self._next = 0
        self._beating_until = 0.0
        self._changing: Group | None = None
        """The group that is being rebalanced: the script of the rebalance sends its heartbeats."""

    # -- heartbeats ------------------------------------------------------------------------------------------------

    def _beat(self, until: float) -> None:
        """Let all members send a heartbeat each `HEARTBEAT_S`, evenly spread, until that time."""
        self._beating_until = until
        rate, began, sent = len(self._members) / HEARTBEAT_S, time.perf_counter(), 0

        def tick() -> None:
            nonlocal sent
            now = time.perf_counter()
            if now >= self._beating_until:
                return
            due = int((now - began) * rate)
            for _ in range(due - sent):
                self._send_one()
            sent = due
            self._crowd.at(now + TICK_S, tick)

        tick()

    def _send_one(self) -> None:
        member = self._members[self._next]
        self._next = (self._next + 1) % len(self._members)
        if not member.line.busy and member.group is not self._changing:
            member.line.send(member.heartbeat, self._taken)

    def _taken(self, frame: bytes) -> None:
        code = _code_at(frame, _CODE_POS)[0]
        if code:
            raise BenchError(f"Heartbeat met error {code}")
        self._beats += 1

    def _settle(self) -> None:
        self._crowd.wait(lambda: not any(member.line.busy for member in self._members), 30, "heartbeats")

    def heartbeats(self, seconds: float) -> float:
        """Broker CPU of one heartbeat in µs, without other load."""
        self._beats = 0
        until = time.perf_counter() + seconds
        with Cpu(self.peer.pid) as cpu:
            self._beat(until)
            self._crowd.wait(lambda: time.perf_counter() >= until, seconds + 10, "heartbeats")
            self._settle()
        if self._beats < 0.9 * seconds * len(self._members) / HEARTBEAT_S:
            raise BenchError(f"only {self._beats} heartbeats in {seconds:g} s: this machine is too busy")
        return cpu.seconds / self._beats * 1e6

    # -- rebalances ------------------------------------------------------------------------------------------------

    def rebalances(self, count: int, pause_s: float = 0.05) -> Iterator[float]:
        """Times of that many rebalances in ms, one group after the other, during the heartbeats of all others."""
        self._beat(time.perf_counter() + 3600)
        for at in range(count):
            resume = time.perf_counter() + pause_s
            self._crowd.wait(lambda resume=resume: time.perf_counter() >= resume, 10, "a pause")  # type: ignore[misc]
            yield self._rebalance(self._groups[at * 7919 % len(self._groups)])
        self._beating_until = 0.0
        self._settle()

    def _rebalance(self, group: Group) -> float:
        members, self._changing = group.members, group
        self._crowd.wait(lambda: not any(member.line.busy for member in members), 30, "heartbeats of a group")
        group.changes += 1
        generation = members[0].generation
        first, *others = members
        began = time.perf_counter()
        scripts = [(first.line, first.join(group.changes)), *((each.line, each.follow()) for each in others)]
        self._crowd.run(scripts, 30, f"the rebalance of {group.name}")
        took_ms = (time.perf_counter() - began) * 1e3
        self._changing = None
        if {member.generation for member in members} != {generation + 1}:
            raise BenchError(f"{group.name} took more than one generation")
        return took_ms

    def close(self) -> None:
        """Close the connections."""
        self._crowd.close()
