"""Transcripts of one partition's ISR: what its replicas and its controller do, line by line.

> replicas COUNT [isr=ID,ID…] [min=N]  brokers with a replica each; broker 1 leads; min.insync.replicas
> produce ID VALUE… [all]              one batch to a broker; with acks=all its answer is shown when it is settled
> fetch ID [ROUNDS]                    a follower fetches from its leader
> lose ID                              it fetches, and the answer is lost: only the leader learns something
> check ID                             the leader looks for followers that lag (replica.lag.time.max.ms)
> decide | refuse CODE                 the controller answers the oldest AlterPartition
> elect ID [ISR]                       the controller elects a leader and tells all live brokers
> save ID | die ID | restart ID        log and high watermark to the disk; a broker that dies; one that starts again
> pass SECONDS
> values                               the records of all live replicas

After each command: answers, proposals, and the replicas that have changed. `LEO` is the log end offset, `HW` the high
watermark; a leader also shows its ISR. `tests/transcripts.py` describes how transcripts are compared and written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.replication.members import Cluster, Member
from tests.transcripts import check_transcript, numbers

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition.replica_state import IsrOutcome

HERE = Path(__file__).parent / "transcripts"


class Player:
    def __init__(self) -> None:
        self.cluster: Cluster
        self.before: dict[int, str] = {}
        self.proposed: list[Any] = []
        self.unsettled: list[tuple[str, Member, int]] = []

    def play(self, line: str) -> list[str]:
        verb, *words = line.split()
        said: list[str] = getattr(self, f"on_{verb}")(*words) or []
        return [*said, *self.settled(), *self.proposals(), *self.changed()]

    # -- what happened -----------------------------------------------------------------------------------------------

    def settled(self) -> list[str]:
        """Answers of acks=all whose records are committed, or cannot be any more."""
        said = []
        for values, leader, required in list(self.unsettled):
            outcome = self.outcome(leader, required) if leader.alive else "the connection is lost"
            if outcome:
                self.unsettled.remove((values, leader, required))
                said.append(f"(produce {values}) {outcome}")
        return said

    def outcome(self, leader: Member, required: int) -> str:
        try:
            return "ok" if leader.partition.leader_role.is_settled(required, -1) else ""
        except ApiError as error:
            return error.code.name

    def proposals(self) -> list[str]:
        """New proposals of leaders."""
        waiting = [proposal for _, proposal in self.cluster.proposals]
        new = [proposal for proposal in waiting if not any(proposal is each for each in self.proposed)]
        self.proposed = waiting
        return [f"AlterPartition isr {numbers(proposal.isr)}" for proposal in new]

    def changed(self) -> list[str]:
        before, self.before = self.before, {each.node_id: shown(each) for each in self.cluster.members.values()}
        return [f"{node}: {text}" for node, text in self.before.items() if before.get(node) != text]

    # -- commands ----------------------------------------------------------------------------------------------------

    def member(self, node: str) -> Member:
        return self.cluster.members[int(node)]

    def on_replicas(self, count: str, *words: str) -> None:
        options = dict(word.split("=") for word in words)
        self.cluster = Cluster(int(count), TopicConfig(min_insync_replicas=int(options.get("min", 1))))
        self.cluster.elect(1, ids(options["isr"]))

    def on_produce(self, node: str, *words: str) -> list[str]:
        values = [word for word in words if word != "all"]
        acks = -1 if "all" in words else 1
        leader = self.member(node)
        try:
            base, _, required = leader.produce(*(value.encode() for value in values), acks=acks)
        except ApiError as error:
            return [error.code.name]
        if acks == 1:
            return [f"offset {base}"]
        self.unsettled.append((" ".join(values), leader, required))
        return []

    def on_fetch(self, node: str, rounds: str = "1") -> list[str]:
        code = self.member(node).fetch(int(rounds))
        return [] if code is ErrorCode.NONE else [code.name]

    def on_lose(self, node: str) -> None:
        follower = self.member(node)
        follower.ask(self.cluster.members[follower.partition.leader])

    def on_check(self, node: str) -> None:
        leader = self.member(node)
        leader.partition.leader_role.shrink_if_lagging(leader.clock.now())

    def on_decide(self) -> list[str]:
        code = self.cluster.decide().error
        return ["ok" if code is ErrorCode.NONE else code.name]

    def on_refuse(self, code: str) -> None:
        leader, proposal = self.cluster.proposals.popleft()
        leader.on_alter_partition_response(IsrOutcome(proposal, ErrorCode[code]))

    def on_elect(self, node: str, isr: str = "") -> None:
        self.cluster.elect(int(node), ids(isr) if isr else None)

    def on_save(self, node: str) -> None:
        self.member(node).save()

    def on_die(self, node: str) -> None:
        self.member(node).die()

    def on_restart(self, node: str) -> None:
        self.cluster.restart(int(node))

    def on_pass(self, seconds: str) -> None:
        self.cluster.pass_seconds(float(seconds))

    def on_values(self) -> list[str]:
        live = [each for each in self.cluster.members.values() if each.alive]
        return [f"{each.node_id}: " + " ".join((value or b"").decode() for value in each.values()) for each in live]


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def shown(member: Member) -> str:
    if not member.alive:
        return "dead"
    partition = member.partition
    text = f"LEO {member.leo} HW {member.hw} epoch {partition.leader_epoch}"
    if partition.leader != member.node_id:
        return f"{text} follows {partition.leader}"
    return f"{text} leads, isr {numbers(partition.isr)}"


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check_transcript(path, Player().play)
