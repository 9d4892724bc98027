"""The state machine of groups without a runtime: commands in, answers out, and a journal that is a list.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ottla.config.broker import BrokerConfig
from ottla.coordinator.shard import VOLATILE, AnswerEffect, Decision, EntryOrigin, JournalProducer, TransactionEnd
from ottla.errors import ErrorCode
from ottla.groups.commands import (
    Commit,
    CommitPartition,
    DeleteGroup,
    DeleteOffsets,
    Describe,
    FetchOffsets,
    ForgetTopics,
    FoundOffset,
    Heartbeat,
    Join,
    Leave,
    Sync,
)
from ottla.groups.group import Group, JoinResult, SyncResult
from ottla.groups.records import GroupCodec, OffsetCommitted, Position
from ottla.groups.shard import GroupShard
from ottla.seams import Instant

MS = 1_000_000
START_MS = 1_700_000_000_000
G = "g"


class Waiting:
    """A ticket, and its result."""

    def __init__(self) -> None:
        self.answered = False
        self.value: Any = None

    def __call__(self, value: object) -> None:
        assert not self.answered, f"answered twice: {self.value}, {value}"
        self.answered, self.value = True, value


class Hall:
    """One shard and a clock."""

    def __init__(self, **settings: object) -> None:
        properties = {"group.initial.rebalance.delay.ms": "0"}
        properties |= {key.replace("_", "."): str(value) for key, value in settings.items()}
        self.config, _ = BrokerConfig.from_properties(properties)
        self.now_ms = 1000
        self.journal: list[tuple[bytes, bytes | None] | TransactionEnd] = []
        self.producers: dict[int, JournalProducer] = {}
        self.codec = GroupCodec()
        self.ids = 0
        self.shard = GroupShard(lambda: self.config)
        self._take(self.shard.on_loaded(self.now))

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms * MS, START_MS + self.now_ms)

    def _take(self, outcome: Decision) -> None:
        """Do what the runtime does when every append is committed at once."""
        for entry in outcome.records:
            offset = len(self.journal)
            record = self.codec.encode(entry)
            assert self.codec.decode(*record) == entry
            self.journal.append(record)
            producer = outcome.producer or JournalProducer(-1, -1)
            self.producers[offset] = producer
            self.shard.apply(entry, EntryOrigin(offset, *producer, self.now.wall_ms))
        for event in outcome.volatile:
            self.shard.apply(event, VOLATILE)
        for effect in (*outcome.now, *outcome.committed):
            assert isinstance(effect, AnswerEffect)
            effect.perform_effect()

    def _ask(self, make: Callable[[Waiting], Any]) -> Waiting:
        waiting = Waiting()
        self._take(self.shard.handle(make(waiting), self.now))
        return waiting

    def pass_ms(self, ms: int) -> None:
        """Let time pass, and act on each deadline in order."""
        until = self.now_ms + ms
        for _ in range(10_000):
            deadline = self.shard.next_deadline()
            if deadline is None or deadline > until * MS:
                break
            self.now_ms = max(self.now_ms, -(-deadline // MS))
            self._take(self.shard.on_time(self.now))
        else:
            raise AssertionError("there is always something due")
        self.now_ms = until

    def reload(self) -> None:
        """Another broker takes over: all state that is not in the journal is lost."""
        self.shard = GroupShard(lambda: self.config)
        for offset, record in enumerate(self.journal):
            if isinstance(record, TransactionEnd):
                self.shard.apply(record, EntryOrigin(offset, record.producer_id))
            else:
                entry = self.codec.decode(*record)
                self.shard.apply(entry, EntryOrigin(offset, *self.producers[offset]))
        self._take(self.shard.on_loaded(self.now))

    def end_transaction(self, producer_id: int, commit: bool = True) -> None:
        end = TransactionEnd(producer_id, 0, commit)
        self.journal.append(end)
        self.shard.apply(end, EntryOrigin(len(self.journal) - 1, producer_id))

    # -- commands ------------------------------------------------------------------------------------------------------

    @property
    def group(self) -> Group:
        return self.shard.groups[G]

    @property
    def state(self) -> str:
        found = self.shard.groups.get(G)
        return "-" if found is None else found.state.value

    def joins(
        self,
        client: str = "c",
        member: str = "",
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"meta"),),
        *,
        kind: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        known: bool = False,
        skip: bool = True,
        group: str = G,
    ) -> Waiting:
        self.ids += 1
        return self._ask(
            lambda ticket: Join(
                ticket, group, member, instance, client, "/host", session_ms, rebalance_ms, kind, protocols,
                str(self.ids), known, skip,
            )
        )  # fmt: skip

    def syncs(
        self,
        member: str,
        assignments: dict[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        kind: str | None = None,
        protocol: str | None = None,
    ) -> Waiting:
        number = self.group.generation if generation is None else generation
        return self._ask(lambda ticket: Sync(ticket, G, number, member, instance, kind, protocol, assignments or {}))

    def beats(
        self, member: str, generation: int | None = None, instance: str | None = None, group: str = G
    ) -> ErrorCode:
        number = self.group.generation if generation is None else generation
        return self._ask(lambda ticket: Heartbeat(ticket, group, number, member, instance)).value

    def leaves(self, *members: tuple[str, str | None]) -> list[str]:
        codes = self._ask(lambda ticket: Leave(ticket, G, members)).value
        return [code.name for code in codes]

    def commits(
        self,
        offset: int,
        *,
        topic: str = "t",
        partition: int = 0,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        producer: int | None = None,
        group: str = G,
        **position: Any,
    ) -> str:
        position.setdefault("commit_ms", self.now.wall_ms)
        item = CommitPartition(topic, partition, Position(offset, **position))
        owner = None if producer is None else JournalProducer(producer, 0)
        asked = self._ask(lambda ticket: Commit(ticket, group, generation, member, instance, [item], owner))
        assert asked.answered
        return asked.value[0].name

    def fetches(
        self, *places: tuple[str, int], stable: bool = False, group: str = G
    ) -> dict[tuple[str, int], int | str | None]:
        """Partition → offset, error, or None; without arguments all partitions."""
        wanted = [(topic, [partition]) for topic, partition in places] or None
        found: list[FoundOffset] = self._ask(lambda ticket: FetchOffsets(ticket, group, wanted, stable)).value
        return {
            (each.topic, each.partition): each.code.name
            if each.code
            else None
            if each.position is None
            else each.position.offset
            for each in found
        }

    def deletes(self, group: str = G) -> str | None:
        code = self._ask(lambda ticket: DeleteGroup(ticket, group)).value
        return None if code is None else code.name

    def drops(self, *places: tuple[str, int]) -> str | list[str]:
        """Submit an OffsetDelete."""
        whole, codes = self._ask(lambda ticket: DeleteOffsets(ticket, G, places)).value
        return whole.name if whole else [code.name for code in codes]

    def forgets(self, *topics: str, groups: Sequence[str] | None = None) -> list[str]:
        """Submit one step. Returns the groups of the next steps."""
        return list(self._ask(lambda ticket: ForgetTopics(ticket, frozenset(topics), groups)).value)

    def described(self, group: str = G) -> Group | None:
        return self._ask(lambda ticket: Describe(ticket, group)).value

    # -- common beginnings ---------------------------------------------------------------------------------------------

    def stable(self, *clients: str, **options: Any) -> list[str]:
        """Make a stable group of these clients, each assigned its own name. Returns member ids, the leader first."""
        first = self.joins(clients[0], **options)
        members = [first.value.member_id]
        if len(clients) > 1:
            self.syncs(members[0], {members[0]: b""})
            waiting = [self.joins(client, **options) for client in clients[1:]]
            again = self.joins(clients[0], members[0], **options)
            members += [each.value.member_id for each in waiting]
            assert again.value.code is ErrorCode.NONE
        followers = [self.syncs(member) for member in members[1:]]
        self.syncs(members[0], {member: member.encode() for member in members})
        assert all(each.value.code is ErrorCode.NONE for each in followers)
        assert self.state == "Stable"
        return members


def joined(waiting: Waiting) -> JoinResult:
    """The result of a successful join."""
    assert waiting.answered, "it waits"
    assert waiting.value.code is ErrorCode.NONE, waiting.value.code
    assert isinstance(waiting.value, JoinResult)
    return waiting.value


def assigned(waiting: Waiting) -> bytes:
    """The assignment that a sync got."""
    assert waiting.answered, "it waits"
    assert isinstance(waiting.value, SyncResult)
    assert waiting.value.code is ErrorCode.NONE, waiting.value.code
    return waiting.value.assignment


def error(waiting: Waiting) -> str:
    """The error of an answer."""
    assert waiting.answered, "it waits"
    return waiting.value.code.name


__all__ = ["G", "Hall", "OffsetCommitted", "Waiting", "assigned", "error", "joined"]
