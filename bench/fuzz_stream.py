"""Streams of well-formed, stateful, extreme requests, many in flight at once; the fast half of bench/fuzz.py.

Requests are drawn by tests/wire/grammar.py in its extreme style, with names, ids, epochs and generations that the
cluster has returned in its answers, so that they reach existing groups, transactions, sessions and topics. A lot of
requests is sent in one piece on one connection. Answers are read until all have arrived, the connection is closed, or
the next one may wait (a long poll, a join). Every answered request and every one that closed its connection counts.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import decode
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import response_body_pos

LOT: Final = 40
"""Requests that are sent in one piece."""
LOTS: Final = 60
"""Lots of a round."""
LANES: Final = 16
"""Connections at work at once."""
PATIENCE_S: Final = 0.25
"""Time to wait for the next answer of a lot; the request may be one that waits, such as a join."""
SAMPLE: Final = 0.05
"""Share of the other answers that are decoded; answers with useful values always are."""
KEPT: Final = 12
"""Maximum of remembered values per kind."""
FRESH: Final = 0.2
"""Share of the requests that are newly drawn; the others repeat earlier ones."""
POOL: Final = 3000
SHOWN: Final = 20_000
"""Hexadecimal digits of a request and its answer that a finding shows."""
_TELLS: Final = {
    ApiKey.JOIN_GROUP, ApiKey.FETCH, ApiKey.INIT_PRODUCER_ID, ApiKey.METADATA, ApiKey.CREATE_TOPICS,
    ApiKey.LIST_GROUPS, ApiKey.FIND_COORDINATOR, ApiKey.LIST_TRANSACTIONS,
}  # fmt: skip
_LIKE: Final = {
    "group_id": "group", "groups": "group", "groups_names": "group", "member_id": "member_id",
    "group_instance_id": "instance", "generation_id": "generation_id", "generation_id_or_member_epoch": "generation_id",
    "transactional_id": "transactional", "transactional_ids": "transactional",
    "v3_and_below_transactional_id": "transactional",
    "producer_id": "producer_id", "producer_epoch": "producer_epoch", "v3_and_below_producer_id": "producer_id",
    "topic": "topic", "topics": "topic", "topic_name": "topic", "topic_names": "topic", "name": "topic",
    "topic_id": "topic_id", "partition": "partition", "partition_index": "partition", "index": "partition",
    "partitions": "partition", "partition_indexes": "partition", "session_id": "session_id",
    "session_epoch": "small", "replica_id": "replica_id", "key": "group", "coordinator_keys": "group",
    "leader_epoch": "small", "current_leader_epoch": "small", "protocol_type": "protocol_type",
    "max_wait_ms": "wait", "timeout_ms": "wait", "session_timeout_ms": "session_timeout",
    "rebalance_timeout_ms": "wait", "transaction_timeout_ms": "session_timeout", "acks": "acks",
    "resource_type": "resource_type", "resource_name": "topic", "num_partitions": "small",
    "replication_factor": "small", "count": "small", "broker_ids": "node", "node_id": "node",
}  # fmt: skip
"""Field name → kind of its value."""
_ORDERS: Final = {
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.STOP_REPLICA,
    ApiKey.LEADER_AND_ISR,
    ApiKey.UPDATE_METADATA,
}
"""Requests of a controller: left out with several brokers, because their real controller sends them."""


def keep(request: bytes, answer: bytes) -> str:
    """Write all bytes of a finding to files, and return a summary."""
    names = []
    for kind, content in (("request", request), ("answer", answer)):
        with tempfile.NamedTemporaryFile(prefix="ottla-fuzz-", suffix=f".{kind}", delete=False) as file:
            file.write(content)
        names.append(Path(file.name))
    shown = f"request {request.hex()[:SHOWN]}\nanswer {answer.hex()[:SHOWN]}"
    return f"all bytes are in {names[0]} and {names[1]}\n{shown}"


class Known:
    """Values from answers of the cluster, and own names."""

    def __init__(self) -> None:
        self._values: dict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=KEPT))
        for kind, values in {
            "group": ("g0", "g1", "g2"),
            "instance": ("i0", "i1"),
            "transactional": ("t0", "t1", "t2"),
            "topic": ("hostile", "hostile-watched", "f0", "f1", "f2"),
            "partition": (0, 0, 0, 1, 2),
            "small": (0, 1, 2, 3, -1),
            "replica_id": (-1, -1, -1, 1, 2),
            "protocol_type": ("consumer",),
            "wait": (0, 1, 5, 20),
            "session_timeout": (6_000, 10_000, 60_000),
            "acks": (-1, 0, 1),
            "resource_type": (2, 2, 4),
            "node": (1, 2, 3),
            "member_id": ("",),
        }.items():
            self._values[kind].extend(values)

    def draw(self, rng: random.Random, field: str) -> Any:
        """A value for a field of that name; None for a field without a known kind."""
        values = self._values.get(_LIKE.get(field, ""))
        return rng.choice(values) if values else None

    def learn(self, response: Any) -> None:
        """Remember the values of an answer: every field with a known kind, at any depth."""
        for field in type(response).FIELDS:
            value = getattr(response, field.name)
            if field.of == "struct" or field.type == "struct":
                for one in (value or ())[:5] if isinstance(value, list) else [value] if value is not None else ():
                    self.learn(one)
            elif (kind := _LIKE.get(field.name)) is not None and _is_worth(kind, value):
                self._values[kind].append(value)


def _is_worth(kind: str, value: Any) -> bool:
    if kind not in ("member_id", "generation_id", "producer_id", "producer_epoch", "topic_id", "session_id", "topic"):
        return False
    return not isinstance(value, list) and value not in (None, "", 0, -1, bytes(16)) and len(str(value)) < 300


class _Lane:
    """One connection with a lot in flight."""

    def __init__(self, port: int, lot: Sequence[tuple[int, int, bytes]]) -> None:
        self.asked = deque((at, key, version) for at, (key, version, _) in enumerate(lot))
        self.lot = lot
        self.data = bytearray()
        self.sock = socket.create_connection(("127.0.0.1", port), 10)
        self.sock.setblocking(False)
        frames = (struct.pack(">i", len(f)) + f[:4] + struct.pack(">i", at) + f[8:] for at, (_, _, f) in enumerate(lot))
        self.out = memoryview(b"".join(frames))
        self.heard_at = time.monotonic()


class Stream:
    """Attackers of one or several brokers; the caller checks their health between two rounds."""

    def __init__(
        self, rng: random.Random, grammar: ModuleType, ports: Sequence[int], served: dict[int, tuple[int, int]]
    ) -> None:
        """`served`: the APIs of the brokers, key → (lowest, highest version)."""
        self.requests = self.answers = self.closes = self.overslept = 0
        self.by_api: Counter[int] = Counter()
        self._rng = rng
        self._grammar = grammar
        self._ports = ports
        self._known = Known()
        left_out = _ORDERS if len(ports) > 1 else ()
        self._served = [(key, *versions) for key, versions in sorted(served.items()) if key not in left_out]
        self._pool: list[tuple[int, int, bytes]] = []
        self.last: list[Sequence[tuple[int, int, bytes]]] = []
        """The lots of the last round, to show with a finding."""

    def round(self) -> None:
        """Send many lots. Raises OSError when a broker is unreachable, ValueError for a malformed answer."""
        self.last = []
        lanes: list[_Lane] = []
        try:
            while lanes or len(self.last) < LOTS:
                while len(lanes) < LANES and len(self.last) < LOTS:
                    self.last.append([self._request() for _ in range(LOT)])
                    lanes.append(_Lane(self._rng.choice(self._ports), self.last[-1]))
                lanes = self._turn(lanes)
        finally:
            for lane in lanes:
                lane.sock.close()

    def _turn(self, lanes: list[_Lane]) -> list[_Lane]:
        writers = [lane.sock for lane in lanes if lane.out]
        readable, writable, _ = select.select([lane.sock for lane in lanes], writers, [], 0.05)
        now = time.monotonic()
        left = []
        for lane in lanes:
            if lane.sock in writable:
                self._write(lane)
            goes_on = self._read(lane, now) if lane.sock in readable else now - lane.heard_at < PATIENCE_S
            if goes_on and lane.asked:
                left.append(lane)
                continue
            self.overslept += bool(lane.asked and goes_on is False and lane.sock not in readable)
            lane.sock.close()
        return left

    @staticmethod
    def _write(lane: _Lane) -> None:
        try:
            lane.out = lane.out[lane.sock.send(lane.out) :]
        except BlockingIOError:
            return
        except OSError:
            lane.out = memoryview(b"")  # also read its end

    def _read(self, lane: _Lane, now: float) -> bool:
        """Handle received bytes. True if more may come."""
        try:
            more = lane.sock.recv(1 << 20)
        except BlockingIOError:
            return True
        except OSError:
            more = b""
        if not more:
            self.closes += 1
            self._count(lane)
            return False
        lane.heard_at = now
        lane.data += more
        pos = 0
        while len(lane.data) - pos >= 4:
            end = pos + 4 + struct.unpack_from(">i", lane.data, pos)[0]
            if end > len(lane.data):
                break
            self.answers += 1
            at = struct.unpack_from(">i", lane.data, pos + 4)[0]
            frame = bytes(lane.data[pos + 4 : end])
            try:
                self._take(*self._count(lane, at), frame)
            except ValueError as error:
                asked = lane.lot[at][2] if 0 <= at < len(lane.lot) else b""
                raise ValueError(f"{error}\n{keep(asked, frame)}") from None
            pos = end
        del lane.data[:pos]
        return True

    def _count(self, lane: _Lane, correlation_id: int | None = None) -> tuple[int, int]:
        """The request that was answered, or that ended the connection; skips requests with acks=0 before it."""
        while True:
            at, key, version = lane.asked.popleft()
            self.requests += 1
            self.by_api[key] += 1
            if correlation_id is None or at == correlation_id:
                return key, version
            if key != ApiKey.PRODUCE:
                raise ValueError(f"request {at} ({API_TABLE[key].name}) was passed over: {correlation_id} is answered")

    def _take(self, key: int, version: int, frame: bytes) -> None:
        if key not in _TELLS and self._rng.random() > SAMPLE:
            return
        view = memoryview(frame)
        try:
            answer, end = decode(API_TABLE[key].response, version, view, response_body_pos(key, version, view))
        except MalformedMessage as error:
            raise ValueError(f"the answer to {API_TABLE[key].name} {version} cannot be decoded: {error}") from None
        if end != len(view):
            raise ValueError(f"the answer to {API_TABLE[key].name} {version} has {len(view) - end} bytes too many")
        if key in _TELLS:
            self._known.learn(answer)

    def _request(self) -> tuple[int, int, bytes]:
        rng = self._rng
        if len(self._pool) >= POOL and rng.random() > FRESH:
            return rng.choice(self._pool)
        key, low, high = rng.choice(self._served)
        version = rng.randint(low, high)
        style = self._grammar.Style(extreme=True, known=self._known.draw)
        made = key, version, self._grammar.request_frame(rng, key, version, style)
        if len(self._pool) < POOL:
            self._pool.append(made)
        else:
            self._pool[rng.randrange(POOL)] = made
        return made
