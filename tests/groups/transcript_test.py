"""Transcripts of consumer groups: the requests of members, line by line, and the coordinator's answers.

> join CLIENT [MEMBER] [@INSTANCE] [known] [protocols=A,B] [session=MS] [rebalance=MS] [type=NAME]
> sync MEMBER[@INSTANCE] GENERATION [MEMBER=ASSIGNMENT…]    from the leader with assignments
> heartbeat MEMBER[@INSTANCE] GENERATION
> leave MEMBER|@INSTANCE…
> commit MEMBER[@INSTANCE] GENERATION PARTITION OFFSET       `-` and -1: a client without a group's membership
> offsets | delete                     OffsetFetch of all partitions; DeleteGroups
> records                              the records in the journal since the last call
> reload                               another coordinator loads the journal
> pass MS

A request that waits is answered below the command that ends its wait, in parentheses. A line in brackets is the new
state of the group. `tests/transcripts.py` describes how transcripts are compared and written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.groups.hall import G, Hall, Waiting
from tests.transcripts import check_transcript

from ottla.coordinator.shard import TransactionEnd
from ottla.errors import ErrorCode
from ottla.groups.group import JoinResult, SyncResult
from ottla.storage.dump.decoders import as_offsets

HERE = Path(__file__).parent / "transcripts"


def shown(value: object) -> str:
    if isinstance(value, JoinResult):
        return shown_join(value)
    if isinstance(value, SyncResult):
        return value.code.name if value.code else f"assigned {value.assignment.decode() or 'nothing'}"
    if isinstance(value, ErrorCode):
        return "ok" if value is ErrorCode.NONE else value.name
    return str(value)


def shown_join(value: JoinResult) -> str:
    if value.code:
        return f"{value.code.name} {value.member_id}".strip()
    text = f"{value.member_id} generation {value.generation}, {value.protocol}, led by {value.leader}"
    if value.skip_assignment:
        text += ", keeps the assignment"
    if value.members:
        text += ", members " + " ".join(
            f"{name}@{instance}" if instance else name for name, instance, _ in value.members
        )
    return text


def member_of(text: str) -> tuple[str, str | None]:
    member, _, instance = text.partition("@")
    return member.strip("-") and member, instance or None


class Player:
    def __init__(self) -> None:
        self.hall = Hall()
        self.open: list[tuple[str, Waiting]] = []
        self.seen, self.state = 0, ""

    def play(self, line: str) -> list[str]:
        verb, *words = line.split()
        answer = getattr(self, f"on_{verb}")(*words)
        said = answer if isinstance(answer, list) else []
        if isinstance(answer, Waiting):
            self.open.append((line, answer))
        for asked, waiting in list(self.open):
            if waiting.answered:
                self.open.remove((asked, waiting))
                said.append(shown(waiting.value) if waiting is answer else f"({asked}) {shown(waiting.value)}")
        return said + self.changed()

    def changed(self) -> list[str]:
        """The state of the group, if it is another one."""
        group = self.hall.shard.groups.get(G)
        before, self.state = self.state, "no group"
        if group is not None:
            members = " ".join(sorted(group.members)) or "no members"
            self.state = f"{group.state.value}, generation {group.generation}, {members}"
        return [] if self.state == before else [f"[{self.state}]"]

    def on_join(self, client: str, *words: str) -> Waiting:
        options = dict(word.split("=") for word in words if "=" in word)
        instance = next((word[1:] for word in words if word.startswith("@")), None)
        member = next((word for word in words if not set("=@") & set(word) and word != "known"), "")
        protocols = tuple((name, b"meta") for name in options.get("protocols", "range").split(","))
        return self.hall.joins(
            client,
            member,
            instance,
            protocols,
            kind=options.get("type", "consumer"),
            session_ms=int(options.get("session", 10_000)),
            rebalance_ms=int(options.get("rebalance", 60_000)),
            known="known" in words,
        )

    def on_sync(self, who: str, generation: str, *assignments: str) -> Waiting:
        member, instance = member_of(who)
        given = {name: value.encode() for name, value in (word.split("=") for word in assignments)}
        return self.hall.syncs(member, given, generation=int(generation), instance=instance)

    def on_heartbeat(self, who: str, generation: str) -> list[str]:
        member, instance = member_of(who)
        return [shown(self.hall.beats(member, int(generation), instance))]

    def on_leave(self, *who: str) -> list[str]:
        return [" ".join(self.hall.leaves(*map(member_of, who))).replace("NONE", "ok")]

    def on_commit(self, who: str, generation: str, partition: str, offset: str) -> list[str]:
        member, instance = member_of(who)
        topic, _, number = partition.rpartition("-")
        of: dict[str, Any] = {"member": member, "generation": int(generation), "instance": instance}
        code = self.hall.commits(int(offset), topic=topic, partition=int(number), **of)
        return [shown(ErrorCode[code])]

    def on_offsets(self) -> list[str]:
        found = self.hall.fetches()
        return [", ".join(f"{topic}-{number} at {offset}" for (topic, number), offset in found.items()) or "none"]

    def on_delete(self) -> list[str]:
        return [shown(ErrorCode[self.hall.deletes() or "NONE"])]

    def on_records(self) -> list[str]:
        new = self.hall.journal[self.seen :]
        self.seen = len(self.hall.journal)
        return [f"{as_offsets(0, *each).payload}" for each in new if not isinstance(each, TransactionEnd)]

    def on_reload(self) -> None:
        self.open.clear()  # a runtime answers NOT_COORDINATOR to what waits
        self.hall.reload()

    def on_pass(self, ms: str) -> None:
        self.hall.pass_ms(int(ms))


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check_transcript(path, Player().play)
