"""Consumer groups drawn at random, for the tests of assignors. Zone: pure."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from ottla.client.consumer.assignment.assignors import Assignor, Range, RoundRobin
from ottla.client.consumer.assignment.sticky import CooperativeSticky, Sticky
from ottla.client.consumer.protocol import NO_GENERATION, Subscription, decode_subscription, encode_subscription
from ottla.types import TopicPartition

ASSIGNORS: tuple[Assignor, ...] = (Range(), RoundRobin(), Sticky(), CooperativeSticky())
RACKS = ("a", "b", "c")


class Case(NamedTuple):
    """The arguments of an assignor."""

    topics: dict[str, list[frozenset[str]]]
    members: dict[str, Subscription]


def draw_case(draw: Random, *, racks: bool, alike: bool, rivals: bool = False) -> Case:
    """Some topics and members. alike: all want the same topics; rivals: members that claim the same partitions."""
    names = [f"topic-{draw.randrange(100)}" for _ in range(draw.randint(1, 6))]
    topics = {name: [_racks(draw, racks) for _ in range(draw.choice((1, 2, 3, 4, 7, 12)))] for name in names}
    wanted = tuple(dict.fromkeys([*topics, *(["missing"] if draw.random() < 0.2 else [])]))
    everything = [TopicPartition(name, number) for name, each in topics.items() for number in range(len(each))]
    draw.shuffle(everything)
    members = {}
    for at in range(draw.randint(1, 14)):
        topics_of = wanted if alike else tuple(draw.sample(wanted, draw.randint(1, len(wanted))))
        taken = [everything.pop() for _ in range(min(len(everything), draw.choice((0, 0, 1, 2, 5))))]
        generation = draw.choice((3, 3, 3, 2, NO_GENERATION)) if taken else NO_GENERATION
        if rivals and taken:
            everything += taken[:1]
            draw.shuffle(everything)
        members[f"client-{draw.randrange(10**6)}-{at}"] = Subscription(
            topics_of,
            None,
            tuple(taken),
            generation,
            draw.choice((*RACKS, None)) if racks else None,
            f"instance-{draw.randrange(100)}-{at}" if draw.random() < 0.2 else None,
        )
    return Case(topics, members)


def _racks(draw: Random, racks: bool) -> frozenset[str]:
    return frozenset(draw.sample(RACKS, draw.randint(1, 2))) if racks else frozenset()


def with_user_data(case: Case, assignor: Assignor) -> Case:
    """Subscriptions as the leader gets them, with the user data of the assignor."""
    members = {}
    for name, each in case.members.items():
        data = assignor.user_data(each.owned or None, each.generation)
        members[name] = decode_subscription(encode_subscription(each._replace(user_data=data)), each.instance_id)
    return case._replace(members=members)
