"""Transcripts of the controller: events and requests, line by line, then what it writes and sends.

> brokers ID… [KEY=VALUE…]             brokers register; the first is the controller, with these settings
> candidate ID                         another broker that competes for the controller's place
> up ID | down ID | bounce ID          a registration begins, ends, or is replaced at once
> end-session ID                       the controller's session ends
> create TOPIC P=ID,ID…… [KEY=VALUE…]  replicas of each partition, and settings
> delete TOPIC
> isr PARTITION ID,ID…                 AlterPartition of the partition's leader
> move PARTITION ID,ID…|cancel | moves AlterPartitionReassignments, ListPartitionReassignments
> elect preferred|unclean PARTITION…
> shutdown ID                          ControlledShutdown

Answers come first. `store` shows what changed in the store: the controller, assignments, partitions. `1 → 2,3` shows a
request of controller 1 to brokers 2 and 3; a broker that gets it twice is named twice. `tests/transcripts.py` describes
how transcripts are compared and written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controller.conftest import Candidate, House
from tests.cluster.controller.proposals_test import alter, request
from tests.transcripts import check_transcript, numbers

from ottla.cluster.controller.leaders import ElectionType
from ottla.cluster.store import layout
from ottla.errors import ApiError, ErrorCode
from ottla.types import TopicPartition
from ottla.wire.messages import LeaderAndIsrRequest, StopReplicaRequest

HERE = Path(__file__).parent / "transcripts"


def partition_of(text: str) -> TopicPartition:
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def settings_of(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=") for word in words if "." in word)


def outcome(value: ApiError | None) -> str:
    return "ok" if value is None else value.code.name


def shown_request(sent: Any) -> str:
    """A request as one line: the states of all partitions."""
    if isinstance(sent, LeaderAndIsrRequest):
        return "LeaderAndIsr " + "; ".join(shown_state(*each) for each in states_of(sent))
    if isinstance(sent, StopReplicaRequest):
        named = (f"{tp}{' delete' if state.delete_partition else ''}" for tp, state in states_of(sent))
        return "StopReplica " + "; ".join(named)
    live = numbers(sorted(broker.id for broker in sent.live_brokers))
    return "; ".join([f"UpdateMetadata live {live}", *(shown_state(*each) for each in states_of(sent))])


def states_of(sent: Any) -> list[tuple[TopicPartition, Any]]:
    found = [
        (TopicPartition(topic.topic_name, state.partition_index), state)
        for topic in sent.topic_states
        for state in topic.partition_states
    ]
    return sorted(found, key=lambda each: each[0])


def shown_state(tp: TopicPartition, state: Any) -> str:
    if state.leader == -2:
        return f"{tp} deleted"
    text = f"{tp} leader {state.leader} epoch {state.leader_epoch} isr {numbers(state.isr)}"
    if getattr(state, "is_new", False):
        text += " new"
    if getattr(state, "offline_replicas", ()):
        text += f" offline {numbers(state.offline_replicas)}"
    return text


class Arrivals(list[Any]):
    """The requests that a broker got, which are also noted in one list for all brokers."""

    def __init__(self, node: int, noted: list[tuple[int, Any]]) -> None:
        super().__init__()
        self.node, self.noted = node, noted

    def append(self, request: Any) -> None:
        super().append(request)
        self.noted.append((self.node, request))


class Player:
    def __init__(self) -> None:
        self.house = House()
        self.before: dict[str, str] = {}
        self.arrivals: list[tuple[int, Any]] = []

    def play(self, line: str) -> list[str]:
        verb, *words = line.split()
        said: list[str] = getattr(self, "on_" + verb.replace("-", "_"))(*words) or []
        self.house.settle()
        return [*said, *self.stored(), *self.sent()]

    @property
    def controller(self) -> Candidate:
        (found,) = (each for each in self.house.candidates if each.seat.controller is not None)
        return found

    # -- what happened -----------------------------------------------------------------------------------------------

    def stored(self) -> list[str]:
        """What the store has now, as far as it differs."""
        before, self.before = self.before, dict(self.store_lines())
        gone = [f"store {name} deleted" for name in before if name not in self.before]
        return gone + [f"store {name} {text}" for name, text in self.before.items() if before.get(name) != text]

    def store_lines(self) -> Iterator[tuple[str, str]]:
        house = self.house
        node = house.node(layout.CONTROLLER)
        holder = "none" if node is None else layout.decode_controller("", node.data)
        yield "controller", f"{holder}, controller epoch {house.data(layout.CONTROLLER_EPOCH).decode()}"
        for path in sorted(house.engine.tree.nodes):
            parts = path.split("/")
            if path.startswith(f"{layout.TOPICS}/") and len(parts) == 4:
                yield f"topic {parts[3]}", self.assignment(parts[3])
            elif parts[-1] == "state":
                state = layout.decode_state(path, house.data(path))
                name = f"{parts[3]}-{parts[5]}"
                yield name, f"leader {state.leader} epoch {state.leader_epoch} isr {numbers(state.isr)}"

    def assignment(self, name: str) -> str:
        topic = self.house.topic(name)
        rows = []
        for partition, replicas in sorted(topic.assignment.items()):
            text = f"{partition}: {numbers(replicas)}"
            if topic.adding.get(partition) or topic.removing.get(partition):
                added, removed = topic.adding.get(partition, ()), topic.removing.get(partition, ())
                text += f" adding {numbers(added)} removing {numbers(removed)}"
            rows.append(text)
        return "replicas " + "; ".join(rows)

    def sent(self) -> list[str]:
        """The requests to brokers in the order in which they first arrived, equal ones in one line."""
        receivers: dict[tuple[int, str], list[int]] = defaultdict(list)
        for node, each in self.arrivals:
            receivers[each.controller_id, shown_request(each)].append(node)
        self.arrivals.clear()
        return [f"{sender} → {numbers(sorted(nodes))}: {text}" for (sender, text), nodes in receivers.items()]

    # -- commands ----------------------------------------------------------------------------------------------------

    def on_brokers(self, *words: str) -> None:
        nodes = [int(word) for word in words if word.isdigit()]
        for node in nodes:
            self.house.broker(node).requests = Arrivals(node, self.arrivals)
        self.house.candidate(nodes[0], settings_of(words))

    def on_candidate(self, node: str) -> None:
        self.house.candidate(int(node))

    def on_up(self, node: str) -> None:
        self.house.brokers[int(node)].up()

    def on_down(self, node: str) -> None:
        self.house.brokers[int(node)].down()

    def on_bounce(self, node: str) -> None:
        self.house.brokers[int(node)].bounce()

    def on_end_session(self, node: str) -> None:
        (candidate,) = (each for each in self.house.candidates if each.node == int(node))
        self.house.in_store(candidate.link.session.close_session)
        self.house.settle()
        candidate.turn(candidate.seat.on_session_lost)

    def on_create(self, name: str, *words: str) -> list[str]:
        replicas = {int(p): ids(text) for p, text in (word.split("=") for word in words if "." not in word)}
        configs = {key.replace(".", "_"): value for key, value in settings_of(words).items()}
        return [self.tried(lambda: self.controller.create(name, replicas, configs=configs))]

    def tried(self, ask: Any) -> str:
        try:
            ask()
        except ApiError as error:
            return error.code.name
        return "ok"

    def on_delete(self, name: str) -> list[str]:
        return [self.tried(lambda: self.controller.ask(lambda c, done: c.delete_topic(name, 1000, done)))]

    def on_isr(self, partition: str, isr: str) -> list[str]:
        topic, number = partition_of(partition)
        leader = self.house.state(topic, number).leader
        asked = request(self.house, self.controller, leader, number, ids(isr), name=topic)
        answer = alter(self.controller, asked)
        code = ErrorCode(answer.error_code or answer.topics[0].partitions[0].error_code)
        return ["ok" if code is ErrorCode.NONE else code.name]

    def on_move(self, partition: str, target: str) -> list[str]:
        tp = partition_of(partition)
        targets = {tp: None if target == "cancel" else ids(target)}
        return [outcome(self.controller.ask(lambda c, done: c.alter_reassignments(targets, True, done))[tp])]

    def on_moves(self) -> list[str]:
        found = self.controller.ask(lambda c, done: c.list_reassignments(None, done))
        shown = [f"{tp}: {numbers(each.replicas)}" for tp, each in found.items()]
        return ["; ".join(shown) or "none"]

    def on_elect(self, kind: str, *partitions: str) -> list[str]:
        tps = [partition_of(each) for each in partitions]
        found = self.controller.ask(lambda c, done: c.elect_leaders(ElectionType[kind.upper()], tps, done))
        return ["; ".join(f"{tp} {outcome(code)}" for tp, code in found.items())]

    def on_shutdown(self, node: str) -> list[str]:
        left = self.controller.ask(lambda c, done: c.controlled_shutdown(int(node), None, done))
        return ["still leads " + " ".join(map(str, left)) if left else "ok"]


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check_transcript(path, Player().play)
