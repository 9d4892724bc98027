"""Any history of members and commits: each request gets one answer, each member one per generation, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.groups.hall import Hall, Waiting

from ottla.errors import ErrorCode
from ottla.groups.group import GroupState

CLIENTS = ["a", "b", "c", "d"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "join", "sync", "sync", "beat", "leave", "commit", "pass", "long", "reload"]),
        st.sampled_from(CLIENTS),
        st.integers(0, 3),
    ),
    max_size=60,
)


class Client:
    """The state of a client of the protocol: its id, its generation, and the request it waits for."""

    def __init__(self, name: str, static: bool) -> None:
        self.name = name
        self.instance = f"i-{name}" if static else None
        self.member = ""
        self.generation = -1
        self.leads = False
        self.others: list[str] = []
        self.request: tuple[str, Waiting] | None = None
        self.owns: tuple[int, bytes] | None = None

    def look(self) -> None:
        """Process the answer to the request, if it has arrived."""
        if self.request is None or not self.request[1].answered:
            return
        kind, waiting = self.request
        self.request = None
        result = waiting.value
        if kind == "join":
            if result.code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                self.member, self.generation = result.member_id, result.generation
                self.leads = result.leader == self.member and not result.skip_assignment
                self.others = [row[0] for row in result.members]
            elif result.code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member = ""
        elif result.code is ErrorCode.NONE:
            self.owns = (self.generation, result.assignment)


def step(hall: Hall, client: Client, verb: str, number: int) -> None:
    if verb == "join":
        sticky, ranged = ("sticky", b""), ("range", b"%d" % number)
        protocols = [(sticky, ranged), (ranged, sticky), (sticky,)][number % 3]
        waiting = hall.joins(client.name, client.member, client.instance, protocols, known=number == 0)
        client.request = ("join", waiting)
    elif verb == "sync" and client.member and client.generation >= 0 and "g" in hall.shard.groups:
        shares = {member: b"share %d" % at for at, member in enumerate(client.others)} if client.leads else {}
        waiting = hall.syncs(client.member, shares, generation=client.generation, instance=client.instance)
        client.request = ("sync", waiting)
    elif verb == "beat" and "g" in hall.shard.groups:
        hall.beats(client.member, client.generation, client.instance)
    elif verb == "leave" and client.member:
        hall.leaves((client.member, client.instance))
    elif verb == "commit":
        hall.commits(number, partition=number, member=client.member, generation=client.generation)
    elif verb in ("pass", "long"):
        hall.pass_ms((number + 1) * (1000 if verb == "pass" else 20_000))


def check(hall: Hall, clients: dict[str, Client]) -> None:
    group = hall.shard.groups.get("g")
    if group is None:
        return
    assert group.leader is None or group.leader in group.members
    assert set(group.statics.values()) <= set(group.members)
    assert (group.state is GroupState.STABLE) <= all(not m.join and not m.sync for m in group.members.values())
    assert (group.state is GroupState.EMPTY) <= (not group.members)
    if group.state is not GroupState.PREPARING_REBALANCE:
        assert not any(member.join for member in group.members.values()), "nobody waits for nothing"
    assert group.awaiting_join == sum(member.join is not None for member in group.members.values())
    supported = [{name for name, _ in member.protocols} for member in group.members.values()]
    assert group.shared_protocols() == (set.intersection(*supported) if supported else set())
    waiting = hall.shard.waiting_tickets()
    for client in clients.values():
        if client.request is not None and not client.request[1].answered:
            assert client.request[1] in waiting, "a request that nobody knows of"
    for generation in {client.owns[0] for client in clients.values() if client.owns}:
        shares = [c.owns[1] for c in clients.values() if c.owns and c.owns[0] == generation and c.owns[1]]
        assert len(shares) == len(set(shares)), "two members have the same share in one generation"


@pytest.mark.slow
@settings(max_examples=150)
@given(STEPS, st.booleans())
def test_any_history(steps: list[tuple[str, str, int]], static: bool):
    hall = Hall(group_initial_rebalance_delay_ms=500)
    clients = {name: Client(name, static and name in "ab") for name in CLIENTS}
    for verb, name, number in steps:
        if verb == "reload":
            before = dict(hall.shard.offsets.of_group("g"))
            hall.reload()
            assert dict(hall.shard.offsets.of_group("g")) == before
            for client in clients.values():
                client.request = None
                client.owns = None
        else:
            step(hall, clients[name], verb, number)
        for client in clients.values():
            client.look()
        check(hall, clients)
    hall.pass_ms(700_000)
    assert hall.shard.waiting_tickets() == [], "in the end everybody is answered"
    assert not hall.shard.groups.get("g") or not hall.group.members
