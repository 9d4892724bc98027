"""A scheduler whose state is in Redis: sorted sets by due time, which survive a restart of the service.

Zone: real. Three keys per partition, with one hash tag: `:due` (offset → due time), `:leased` (offset → end of the
lease) and `:meta` (owner, sequence, generation, position, count). Each change is one script, which Redis executes
atomically, also in its append-only file. The guards against faults:

    two services own a partition        the owner's token: scripts of the older one are refused. (The generation of the
                                        group, not Redis, guards against forwarding a record twice.)
    a service dies with claims          leases: records are due again when the partition is taken over, or at their end
    Redis restarts without its last     the sequence: it differs from the last response, so that the partition is opened
    second, or a response is lost       again; an older state is consistent, as position and entries change together
    Redis was flushed, or lost a key    the generation (committed with the positions in Kafka) and the count: the state
                                        is dropped and rebuilt from the log
    a topic was deleted and recreated   the group has no positions of it, and so no generation
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from ottla.client.errors import ConfigError
from ottla.retry.errors import SchedulerError, SchedulerLostError
from ottla.retry.options import REDIS_OPTIONS
from ottla.retry.scheduler import Ref, ScheduledRecord
from ottla.types import TopicPartition

_PAGE: Final = 10_000
_ARGUMENTS: Final = 1_000
"""Entries per script: Lua's stack holds about 8,000 values."""

_CHECK: Final = """
local function lost(why) return {-1, why} end
local m = redis.call('HMGET', KEYS[1], 'owner', 'seq', 'count')
if not m[1] then return lost('it is gone') end
if m[1] ~= ARGV[1] then return lost('another service has it') end
if m[2] ~= ARGV[2] then return lost('it is an older one') end
local there = redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3])
if there ~= tonumber(m[3]) then return lost('entries are missing') end
local function answer(more)
  local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  local lease = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
  return {redis.call('HINCRBY', KEYS[1], 'seq', 1), head[2] or '', lease[2] or '', more or {}}
end
"""
_OPEN: Final = """
local m = redis.call('HMGET', KEYS[1], 'generation', 'position', 'count')
local there = redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3])
local known = m[1] and m[1] == ARGV[3] and tonumber(m[2]) >= tonumber(ARGV[2]) and there == tonumber(m[3])
if known then
  for _, each in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do redis.call('ZADD', KEYS[2], 0, each) end
  redis.call('DEL', KEYS[3])
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'seq', 0)
  local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  return {1, m[2], head[2] or ''}
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'seq', 0, 'generation', ARGV[4], 'position', ARGV[2], 'count', 0)
return {0, ARGV[2], ''}
"""
_ADD: Final = (
    _CHECK
    + """
local new = 0
for i = 4, #ARGV, 2 do
  if not redis.call('ZSCORE', KEYS[3], ARGV[i]) then new = new + redis.call('ZADD', KEYS[2], ARGV[i + 1], ARGV[i]) end
end
redis.call('HINCRBY', KEYS[1], 'count', new)
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'position', ARGV[3]) end
return answer()
"""
)
_CLAIM: Final = (
    _CHECK
    + """
for _, each in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ARGV[4])) do
  redis.call('ZREM', KEYS[3], each)
  redis.call('ZADD', KEYS[2], 0, each)
end
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[3], 'WITHSCORES', 'LIMIT', 0, ARGV[6])
for i = 1, #due, 2 do
  redis.call('ZREM', KEYS[2], due[i])
  redis.call('ZADD', KEYS[3], ARGV[5], due[i])
end
return answer(due)
"""
)
_RELEASE: Final = (
    _CHECK
    + """
for i = 3, #ARGV, 2 do
  if redis.call('ZREM', KEYS[3], ARGV[i]) == 1 then redis.call('ZADD', KEYS[2], ARGV[i + 1], ARGV[i]) end
end
return answer()
"""
)
_DONE: Final = (
    _CHECK
    + """
local gone = 0
for i = 3, #ARGV do
  gone = gone + redis.call('ZREM', KEYS[3], ARGV[i]) + redis.call('ZREM', KEYS[2], ARGV[i])
end
redis.call('HINCRBY', KEYS[1], 'count', -gone)
return answer()
"""
)


class _Open:
    """A partition that this service owns."""

    __slots__ = ("generation", "keys", "lease_ms", "next_ms", "owner", "seq")

    def __init__(self, keys: list[str], owner: str, generation: str) -> None:
        self.keys = keys
        self.owner = owner
        self.generation = generation
        self.seq = 0
        self.next_ms: int | None = None
        self.lease_ms: int | None = None


class RedisScheduler:
    """Keeps waiting records in a Redis server; `prefix` separates services that share it."""

    def __init__(
        self,
        url: str,
        prefix: str = REDIS_OPTIONS["prefix"].default,
        *,
        lease_ms: int = REDIS_OPTIONS["lease_ms"].default,
        timeout_s: float = REDIS_OPTIONS["timeout_s"].default,
    ) -> None:
        """url: `redis://host:port/database`, or `rediss://…?ssl_ca_certs=FILE` with TLS. Connects on first use. Raises
        ConfigError, without the password.
        """
        try:
            import redis  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigError("the scheduler in Redis needs redis-py", 'pip install "ottla[redis]"') from error
        try:
            self._redis: Any = redis.Redis.from_url(
                url, decode_responses=True, socket_timeout=timeout_s, socket_connect_timeout=timeout_s
            )
        except ValueError as error:
            raise ConfigError(
                f"{_without_password(url)!r} is not an address of a Redis server: {error}", "Use redis://host:6379/0"
            ) from error
        self._errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self._url = _without_password(url)
        self._prefix = prefix
        self._lease_ms = lease_ms
        self._open: dict[TopicPartition, _Open] = {}
        self._checked = False

    def open(self, tp: TopicPartition, low: int, generation: str) -> ScheduledRecord | None:
        """Take over the state in Redis, if it belongs to the committed position; otherwise make a new one."""
        self.check_server()
        # Keys with one hash tag are on one node of a Redis Cluster, which a script over several keys needs.
        tag = f"{{{self._prefix}:{tp.topic}:{tp.partition}}}"
        ours = _Open([f"{tag}:meta", f"{tag}:due", f"{tag}:leased"], secrets.token_hex(8), generation)
        # A random generation: the state of an earlier run cannot have it by chance.
        fresh = secrets.token_hex(8)
        known, position, head = self._call_redis(
            lambda: self._redis.eval(_OPEN, 3, *ours.keys, ours.owner, low, generation, fresh)
        )
        ours.next_ms = _parse_time(head)
        ours.generation = generation if known else fresh
        self._open[tp] = ours
        return ScheduledRecord(int(position), self._read_members(ours.keys[1])) if known else None

    def _read_members(self, key: str) -> list[int]:
        found: list[int] = []
        while True:
            # Pages by rank skip no member: only the owner changes the set, and this service has just become the owner.
            page = self._call_redis(lambda: self._redis.zrange(key, len(found), len(found) + _PAGE - 1))
            found.extend(map(int, page))
            if len(page) < _PAGE:
                return found

    def generation(self, tp: TopicPartition) -> str:
        """The generation of the state in Redis."""
        return self._open[tp].generation

    def close(self, tp: TopicPartition) -> None:
        """Forget the partition; its next owner takes it over, without a message to Redis."""
        self._open.pop(tp, None)

    def add(self, tp: TopicPartition, entries: Sequence[tuple[int, int]], position: int) -> None:
        """Add entries, a thousand per script; the last script also sets the position."""
        pieces = [entries[at : at + _ARGUMENTS] for at in range(0, len(entries), _ARGUMENTS)] or [()]
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            # Only the last script moves the position: after a crash between two scripts the log is read again from the
            # old position, and entries that are there already are not counted twice.
            self._run_script(tp, _ADD, position if last else "", *(number for entry in piece for number in entry))

    def claim(self, until_ms: int, limit: int) -> list[Ref]:
        """Claim records in the partitions that have due ones, or leases that ended."""
        now_ms = time.time_ns() // 1_000_000
        found: list[Ref] = []
        for tp, ours in list(self._open.items()):
            due = ours.next_ms is not None and ours.next_ms <= until_ms
            if limit > len(found) and (due or (ours.lease_ms is not None and ours.lease_ms <= now_ms)):
                left = min(limit - len(found), _ARGUMENTS)
                rows = self._run_script(tp, _CLAIM, until_ms, now_ms, now_ms + self._lease_ms, left)
                found.extend(
                    Ref(int(float(due)), tp, int(each)) for each, due in zip(rows[::2], rows[1::2], strict=True)
                )
        return sorted(found)

    def release(self, refs: Iterable[Ref]) -> None:
        """Return claimed records to their due time."""
        for tp, some in _group_by_partition(refs, self._open):
            self._run_script(tp, _RELEASE, *(number for each in some for number in (each.offset, each.due_ms)))

    def done(self, refs: Iterable[Ref]) -> None:
        """Remove records, whether they are claimed or not."""
        for tp, some in _group_by_partition(refs, self._open):
            self._run_script(tp, _DONE, *(each.offset for each in some))

    def next_due(self) -> int | None:
        """The earliest due time, according to the last responses."""
        times = [each.next_ms for each in self._open.values() if each.next_ms is not None]
        return min(times, default=None)

    def close_all(self) -> None:
        """Close the connections."""
        self._open.clear()
        self._redis.close()

    # -- Redis ---------------------------------------------------------------------------------------------------------

    def _run_script(self, tp: TopicPartition, script: str, *arguments: object) -> list[str]:
        ours = self._open[tp]
        answer = self._call_redis(lambda: self._redis.eval(script, 3, *ours.keys, ours.owner, ours.seq, *arguments))
        if answer[0] == -1:
            raise SchedulerLostError(tp, answer[1])
        ours.seq, ours.next_ms, ours.lease_ms = answer[0], _parse_time(answer[1]), _parse_time(answer[2])
        rows: list[str] = answer[3]
        return rows

    def _call_redis(self, ask: Any) -> Any:
        try:
            return ask()
        except self._errors as error:
            raise SchedulerError(f"Redis at {self._url} does not answer: {error}", "Is it running?") from error

    def check_server(self) -> None:
        """Refuse a server that evicts keys when its memory is full. Raises ConfigError, and SchedulerError when it does
        not answer."""
        if self._checked:
            return
        info = self._call_redis(lambda: self._redis.info("memory"))
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise ConfigError(
                f"Redis at {self._url} evicts keys when its memory is full: maxmemory-policy is {policy}",
                "Run CONFIG SET maxmemory-policy noeviction",
            )
        self._checked = True


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    # A query may have one as well (`?password=`).
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _parse_time(text: Any) -> int | None:
    # Redis returns scores as floating-point numbers, which are exact for milliseconds (below 2**53).
    return None if text == "" else int(float(text))


def _group_by_partition(
    refs: Iterable[Ref], opened: dict[TopicPartition, _Open]
) -> Iterable[tuple[TopicPartition, list[Ref]]]:
    by_place: dict[TopicPartition, list[Ref]] = {}
    for each in refs:
        by_place.setdefault(each.tp, []).append(each)
    for tp, some in by_place.items():
        if tp in opened:
            for at in range(0, len(some), _ARGUMENTS):
                yield tp, some[at : at + _ARGUMENTS]
