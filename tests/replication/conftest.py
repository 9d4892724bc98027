"""The room's broker by hand.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.handnode import Node, records

from ottla.replication.partition.leader_role import LeaderRole
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.replica_state import IsrProposal, PartitionState
from ottla.sim.mutants.ablation import without_safeguard


@pytest.fixture
def guarded(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether all safeguards are on. Its indirect parameter names one that is switched off for the test, or is None."""
    with without_safeguard(request.param):
        yield request.param is None


class Proposals(list):
    """A controller that only listens."""

    def propose_isr(self, leader: LeaderRole, proposal: IsrProposal) -> None:
        self.append(proposal)


class Replicated(Node):
    """A broker whose replicas on other brokers are set by hand."""

    def start(self) -> None:
        super().start()
        self.broker._dispatch._is_alone = False  # else no connection through a listener counts as a broker's

    def partition(self, name: str = "t", index: int = 0) -> Partition:
        found = self.broker.hosted.find_partition(name, index)
        assert found is not None
        return found

    def send_state(
        self, leader: int, isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2), name: str = "t"
    ) -> Partition:
        """Apply a state of partition 0 of a topic, in the next leader epoch."""
        partition = self.partition(name)
        partition.leader_role._isr_changes = self.proposals = Proposals()
        epoch = partition.leader_epoch + 1
        state = PartitionState(leader, epoch, isr, partition.partition_epoch + 1, replicas)
        become = partition.make_leader if leader == partition.node_id else partition.make_follower
        self.process.post_turn(0, "state", lambda: (become(state, self.process.clock.now()), self.broker.end_turn()))
        self.pass_ms(0)
        return partition

    def replica_request(self, name: str, offset: int, version: int = 12, **more):
        """A fetch of broker 2."""
        more.setdefault("leader_epoch", self.partition(name).leader_epoch)
        last_epoch = more.pop("last_epoch", -1)
        log_start = more.pop("log_start", 0)
        request = self.fetch_request(name, offset, **more)
        asked = request.topics[0].partitions[0]
        asked.last_fetched_epoch, asked.log_start_offset = last_epoch, log_start
        if version < 15:
            request.replica_id = 2
        else:
            request.replica_state.replica_id, request.replica_state.replica_epoch = 2, 7
        return request

    def replicate(self, name: str, offset: int, version: int = 12, **more):
        """The answer for the one partition."""
        request = self.replica_request(name, offset, version, **more)
        return self.ask(request, version).responses[0].partitions[0]


@pytest.fixture
def node() -> Node:
    """A broker with the topic `t`."""
    made = Replicated()
    made.create("t")
    return made


@pytest.fixture
def records_in():
    """Content of a fetch answer → records."""
    return records
