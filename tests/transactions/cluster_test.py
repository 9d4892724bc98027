"""A transaction over three brokers, whose coordinator dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.handcluster import HandCluster, Member
from tests.transactions.hand import SETTINGS, Hand, X

from ottla.errors import ErrorCode
from ottla.wire.messages import ListOffsetsRequest

pytestmark = [pytest.mark.slow]

STATE = "__transaction_state"
OFFSETS = "__consumer_offsets"


class Three:
    """Three brokers, topic t with a partition led by each of two, and a producer."""

    def __init__(self) -> None:
        one = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
        self.cluster = HandCluster(SETTINGS | one)
        self.cluster.create("t", (1, 2, 3), (2, 3, 1), min_insync_replicas="2")
        self.hand = Hand(self.cluster[1])
        for kind, name in ((1, X), (0, "g")):
            self.until(lambda kind=kind, name=name: self.hand.find(name, kind).error_code)
        for topic in (STATE, OFFSETS):
            self.cluster.in_sync(topic, 1, 2, 3)
        self.at(STATE)
        self.until(lambda: self.hand.init().error_code)

    def at(self, topic: str, index: int = 0, other_than: int = 0) -> Member:
        """The leader of a partition, to which the producer sends its requests."""
        member = self.cluster.leader(topic, index, other_than)
        self.hand.node = member
        return member

    def until(self, code: Callable[[], int]) -> None:
        """Repeat a request until it has no retriable error."""
        passing = (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.CONCURRENT_TRANSACTIONS,
        )
        self.cluster.until(lambda: code() not in passing, "an answer", 30_000)

    def write(self) -> None:
        """Records in both partitions, and offsets of the group."""
        self.at(STATE)
        assert set(self.hand.add(("t", 0), ("t", 1)).values()) == {0}
        assert self.hand.add_offsets() == 0
        for index in (0, 1):
            self.at("t", index)
            self.hand.sequence = 0
            assert self.hand.produce(b"x", partition=index) == 0
        self.at(OFFSETS)
        assert self.hand.commit_offset(5) == 0

    def ends(self, index: int, other_than: int) -> tuple[int, int]:
        """Last stable offset and high watermark of a partition of t."""
        self.at("t", index, other_than)
        found = []
        for isolation in (1, 0):
            part = ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
            topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])
            request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic])
            found.append(self.hand.ask(request, 5).topics[0].partitions[0].offset)
        return found[0], found[1]


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_coordinator_writes_the_markers(commit: bool) -> None:
    three = Three()
    three.write()
    first = three.at(STATE)
    three.hand.marks = type(three.hand.marks)(first)
    three.hand.marks.held = True
    assert three.hand.end(commit).error_code == 0
    three.cluster.pass_ms(100)
    assert three.hand.state == ("PrepareCommit" if commit else "PrepareAbort")
    first.kill()
    three.at(STATE, other_than=first.node_id)
    three.until(lambda: three.hand.describe()[0].error_code)
    ended = "CompleteCommit" if commit else "CompleteAbort"
    three.cluster.until(lambda: three.hand.state == ended, ended)
    for index in (0, 1):
        assert three.ends(index, first.node_id) == (2, 2)
    three.at(OFFSETS, other_than=first.node_id)
    assert three.hand.offset(stable=True) == (5 if commit else -1, 0)


def test_an_open_transaction_survives_its_coordinator() -> None:
    three = Three()
    three.write()
    first = three.at(STATE)
    first.kill()
    three.at(STATE, other_than=first.node_id)
    three.until(lambda: three.hand.end().error_code)
    three.cluster.until(lambda: three.hand.state == "CompleteCommit", "it is complete")
    for index in (0, 1):
        assert three.ends(index, first.node_id) == (2, 2)
    three.at(OFFSETS, other_than=first.node_id)
    assert three.hand.offset(stable=True) == (5, 0)
