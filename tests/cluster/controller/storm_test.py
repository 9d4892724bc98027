"""Random faults from a seed: brokers, controllers and answers fail and return; afterwards all agree.

Zone: real. The fake brokers hold no data; the checks are a controller's guarantees: valid successions of
states, one writer, and no broker without its updates after the storm.
"""

from __future__ import annotations

import random

import pytest
from tests.cluster.controller.proposals_test import request

from ottla.cluster.controller.controller import ElectionType
from ottla.cluster.image import NO_LEADER
from ottla.cluster.store import layout
from ottla.cluster.topics import TopicSpec
from ottla.errors import ApiError
from ottla.seams import Kind, Op
from ottla.types import TopicPartition

BROKERS = (1, 2, 3, 4)
SEATS = (11, 12)
MS = 1_000_000


class Storm:
    """One run."""

    def __init__(self, house, seed: int) -> None:
        self.house = house
        self.random = random.Random(seed)
        self.boxes: list[list] = []
        self.names = 0
        self.states: dict[str, layout.StateNode] = {}
        for node in BROKERS:
            house.broker(node)
        self.seats = {node: house.candidate(node) for node in SEATS}
        house.candidates.clear()
        house.candidates.extend(self.seats.values())

    @property
    def seated(self):
        return next((each for each in self.seats.values() if each.seat.controller is not None), None)

    def ask(self, ask) -> None:
        if self.seated is not None:
            self.boxes.append(self.seated.begin(ask))

    # -- what happens ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        deeds = [
            self.broker_down, self.broker_up, self.broker_up, self.bounce, self.silence, self.create, self.delete,
            self.grow, self.move, self.cancel, self.elect, self.shut_down, self.propose, self.propose, self.propose,
            self.lose_answer, self.cut, self.expire, self.seat_by_hand, self.topic_by_hand, self.delete_by_hand,
        ]  # fmt: skip
        self.random.choice(deeds)()
        self.house.timeline.run_until(self.house.timeline.now_ns + self.random.choice((0, 1, 5, 50, 400)) * MS)
        self.watch_states()

    def live(self) -> list[int]:
        grants = self.house.engine.tree.grants
        return [node for node in BROKERS if self.house.brokers[node].link.session.id in grants]

    def broker_down(self) -> None:
        if len(self.live()) > 1:
            self.house.brokers[self.random.choice(self.live())].down(settle=False)

    def broker_up(self) -> None:
        for node in BROKERS:
            if node not in self.live():
                self.house.brokers[node].up()
                return

    def bounce(self) -> None:
        if self.live():
            self.house.brokers[self.random.choice(self.live())].bounce()

    def silence(self) -> None:
        broker = self.house.brokers[self.random.choice(BROKERS)]
        broker.silent = not broker.silent

    def create(self) -> None:
        self.names += 1
        spec = TopicSpec(f"t{self.names}", self.random.randint(1, 4), self.random.randint(1, 3))
        self.ask(lambda c, done: c.create_topic(spec, False, 5000, done))

    def topic(self):
        names = sorted(self.house.engine.tree.children(layout.TOPICS))
        return self.random.choice(names) if names else None

    def delete(self) -> None:
        name = self.topic()
        if name is not None and self.random.random() < 0.4:
            self.ask(lambda c, done: c.delete_topic(name, 5000, done))

    def grow(self) -> None:
        name = self.topic()
        if name is not None:
            count = len(self.house.topic(name).assignment) + 1
            self.ask(lambda c, done: c.add_partitions(name, count, None, False, 5000, done))

    def partition(self) -> TopicPartition | None:
        name = self.topic()
        return (
            None if name is None else TopicPartition(name, self.random.choice(list(self.house.topic(name).assignment)))
        )

    def move(self) -> None:
        tp = self.partition()
        if tp is not None:
            target = tuple(self.random.sample(BROKERS, self.random.randint(1, 3)))
            self.ask(lambda c, done: c.alter_reassignments({tp: target}, True, done))

    def cancel(self) -> None:
        tp = self.partition()
        if tp is not None:
            self.ask(lambda c, done: c.alter_reassignments({tp: None}, True, done))

    def elect(self) -> None:
        kind = self.random.choice(list(ElectionType))
        self.ask(lambda c, done: c.elect_leaders(kind, None, done))

    def shut_down(self) -> None:
        node = self.random.choice(BROKERS)
        self.ask(lambda c, done: c.controlled_shutdown(node, None, done))

    def propose(self) -> None:
        """A leader proposes that a follower joins or leaves the ISR."""
        tp = self.partition()
        if tp is None or self.seated is None:
            return
        topic = self.seated.controller.image.topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            return
        partition = topic.partitions[tp.partition]
        told = self.house.brokers.get(partition.leader)
        if told is None or partition.leader not in self.live() or tp not in told.partitions:
            return
        others = [each for each in partition.replicas if each != partition.leader]
        isr = (partition.leader, *self.random.sample(others, self.random.randint(0, len(others))))
        state = told.partitions[tp]
        asked = request(
            self.house, self.seated, partition.leader, tp.partition, isr, name=tp.topic,
            leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch,
        )  # fmt: skip
        self.ask(lambda c, done: c.alter_partition(asked, 3, done))

    def lose_answer(self) -> None:
        self.random.choice(list(self.seats.values())).link.lose_answers += 1

    def cut(self) -> None:
        link = self.random.choice(list(self.seats.values())).link
        link.cut = None if link.cut is not None else self.random.choice((Kind.NOT_DONE, Kind.UNKNOWN))

    def expire(self) -> None:
        seat = self.random.choice(list(self.seats.values()))
        self.house.in_store(seat.link.session.close)
        self.house.timeline.run_until(self.house.timeline.now_ns + self.random.choice((0, 5, 200)) * MS)
        self.again(seat)

    def again(self, seat) -> None:
        """The candidate notices the loss of its session, and opens a new one."""
        seat.turn(seat.seat.on_session_lost)
        self.house.timeline.run_until(self.house.timeline.now_ns + MS)
        seat.open_session()
        seat.seat._store = seat.store
        epoch = seat.seat._broker_epoch + 1
        seat.turn(lambda: seat.seat.start(epoch))

    def seat_by_hand(self) -> None:
        if self.house.node(layout.CONTROLLER) is not None and self.random.random() < 0.3:
            self.hand(Op("delete", layout.CONTROLLER))

    def topic_by_hand(self) -> None:
        self.names += 1
        replicas = self.random.sample(BROKERS, 2)
        content = f'{{"version":1,"partitions":{{"0":{replicas}}}}}'.encode()
        self.hand(Op("create", f"{layout.TOPICS}/h{self.names}", content))

    def delete_by_hand(self) -> None:
        name = self.topic()
        if name is not None and self.random.random() < 0.3:
            self.hand(Op("create", f"{layout.DELETE_TOPICS}/{name}"))

    def hand(self, *ops: Op) -> None:
        self.house.hand.submit_ops("hand", ops, lambda _: None)

    # -- what must hold --------------------------------------------------------------------------------------------

    def watch_states(self) -> None:
        """Check that every state follows from the one before: epochs never decrease, the leader is in sync."""
        seen: dict[str, layout.StateNode] = {}
        for path, node in self.house.engine.tree.nodes.items():
            if path.endswith("/state"):
                state = layout.decode_state(path, node.data)
                key = f"{path} {node.czxid}"
                before = self.states.get(key, state)
                assert state.leader_epoch >= before.leader_epoch, path
                assert state.controller_epoch >= before.controller_epoch, path
                if state.leader_epoch == before.leader_epoch:
                    assert state.leader == before.leader, f"{path}: two leaders in one epoch"
                assert state.isr, path
                assert state.leader in (NO_LEADER, *state.isr), path
                assert len(set(state.isr)) == len(state.isr), path
                seen[key] = state
        self.states = seen

    def heal(self) -> None:
        for broker in self.house.brokers.values():
            broker.silent = False
        for seat in self.seats.values():
            seat.link.cut = None
            seat.link.lose_answers = 0
        self.house.settle(35)
        for node in BROKERS:
            if node not in self.live():
                self.house.brokers[node].up()
            else:
                self.house.brokers[node].bounce()  # a broker that asked for a controlled shutdown has stopped
            self.house.settle(2)
        self.house.settle(40)
        self.watch_states()

    def check(self) -> None:
        seated = [each for each in self.seats.values() if each.seat.controller is not None]
        assert len(seated) == 1
        controller = seated[0]
        assert controller.controller.idle
        assert all(each.seat.controller_id == controller.node for each in self.seats.values())
        image = controller.controller.image
        assert list(image.brokers) == list(BROKERS)
        assert sorted(image.topics) == sorted(self.house.engine.tree.children(layout.TOPICS))
        assert self.house.engine.tree.children(layout.DELETE_TOPICS) == []
        for topic in image.topics.values():
            for partition in topic.partitions:
                assert partition.leader != NO_LEADER, (topic.name, partition)
        self.house.check_agreement(controller)
        for node in BROKERS:
            for tp in self.house.brokers[node].partitions:
                assert node in image.topics[tp.topic].partitions[tp.partition].replicas, (node, tp)
        for box in self.boxes:
            assert len(box) == 1, "asked once, answered once"
            assert not isinstance(box[0], Exception) or isinstance(box[0], ApiError)


def run(house, seed: int, steps: int = 40) -> None:
    storm = Storm(house, seed)
    for _ in range(steps):
        storm.step()
    storm.heal()
    storm.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_brokers_and_store_agree_after_a_storm(house, seed):
    run(house, seed)
