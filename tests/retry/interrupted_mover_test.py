"""A mover that is put out of its group, whose scheduler fails or that is interrupted: it recovers, or leaves nothing
open.

The schedulers of these tests are embedded ones that fail where the test wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from tests.retry.moving import Readers, mover_of, now_ms, turn_until, wait_here

from ottla.client import Admin, ClientConfig, Cluster, Producer, TopicPartition, values_of
from ottla.client.admin.transactions import TransactionAdmin, TransactionView
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.retry import EmbeddedScheduler
from ottla.retry.errors import SchedulerError, SchedulerLostError
from ottla.retry.headers import Origin, Trail, with_trail
from ottla.retry.scheduler import Ref, ScheduledRecord
from ottla.wire.apis import ApiKey
from ottla.wire.messages import LeaveGroupRequest, LeaveGroupResponse

pytestmark = pytest.mark.slow


class Interfered(EmbeddedScheduler):
    """Calls of the test's own within the first `open`, and before the first `done`."""

    def __init__(
        self, opening: Callable[[TopicPartition], object] | None, doing: Callable[[TopicPartition], object] | None
    ) -> None:
        super().__init__()
        self._opening = opening
        self._doing = doing

    def open(self, tp: TopicPartition, low: int, generation: str) -> ScheduledRecord | None:
        found = super().open(tp, low, generation)
        call, self._opening = self._opening, None
        if call is not None:
            call(tp)
        return found

    def generation(self, tp: TopicPartition) -> str:
        return "its own"

    def done(self, refs: Iterable[Ref]) -> None:
        call, self._doing = self._doing, None
        if call is not None:
            call(next(iter(refs)).tp)


def put_out(broker: str, group: str, instance: str) -> None:
    """Remove a static member from its group, as an administrator does."""
    identity = LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=instance)
    request = LeaveGroupRequest(group_id=group, members=[identity])
    with Cluster(ClientConfig(bootstrap_servers=broker)) as cluster:
        calls = CoordinatorCalls(cluster, CoordinatorKind.GROUP)
        calls.send_to_coordinator(
            group, ApiKey.LEAVE_GROUP, lambda _: request, LeaveGroupResponse, lambda _: None, None, 5, 3
        )


def lost(tp: TopicPartition) -> None:
    raise SchedulerLostError(tp, "another service has it")


def fails(_where: TopicPartition) -> None:
    raise SchedulerError("it does not answer")


def test_a_member_that_is_put_out_while_it_opens_a_partition_comes_back(broker: str, topic: str) -> None:
    wait_here(broker, topic, {b"a": now_ms()})
    scheduler = Interfered(lambda _where: put_out(broker, f"mover-{topic}", f"mover-{topic}-1"), None)
    with mover_of(broker, topic, scheduler=scheduler) as mover, Readers(broker, topic) as readers:
        turn_until(mover, lambda: readers.look() == [b"a"])
        assert mover.stats.events["reopened"] > 0


def test_a_partition_whose_scheduler_is_lost_while_it_is_opened_is_opened_again(broker: str, topic: str) -> None:
    wait_here(broker, topic, {b"a": now_ms()})
    scheduler = Interfered(lost, None)
    with mover_of(broker, topic, scheduler=scheduler) as mover, Readers(broker, topic) as readers:
        turn_until(mover, lambda: readers.look() == [b"a"])
        assert mover.stats.events["reopened"] == 1


def test_a_scheduler_that_fails_over_a_deleted_record_costs_none_of_those_claimed_with_it(
    broker: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.retry.mover.KEEP_MS", -(2**40))  # records are read again when they are claimed
    monkeypatch.setattr("ottla.retry.mover.AHEAD_MS", 100)  # they are due before the partition is opened again

    class Deleted(Interfered):
        """Retention deletes the first record when it has been claimed."""

        def claim(self, until_ms: int, limit: int) -> list[Ref]:
            found = super().claim(until_ms, limit)
            if found and self._doing is not None:
                with Cluster(ClientConfig(bootstrap_servers=broker)) as cluster:
                    values_of(Admin(cluster).delete_records({found[0].tp: 1}))
            return found

    due = now_ms() + 1_000  # they are read before they are claimed, and claimed together
    with Producer({"bootstrap.servers": broker}) as producer:
        for number, value in enumerate((b"deleted", b"a")):
            headers = with_trail((), Trail(2, due + number, origin=Origin(topic)))
            producer.send(f"{topic}.retry.1", value, headers=headers, partition=0)
    with mover_of(broker, topic, scheduler=Deleted(None, fails)) as mover, Readers(broker, topic) as readers:
        turn_until(mover, lambda: readers.look() == [b"a"])
        assert mover.stats.expired == 1


def transaction_of(broker: str, transactional_id: str) -> TransactionView:
    with Cluster(ClientConfig(bootstrap_servers=broker)) as cluster:
        return TransactionAdmin(cluster).describe_transaction(transactional_id)


def test_a_mover_that_is_interrupted_leaves_no_transaction_open(broker: str, topic: str) -> None:
    wait_here(broker, topic, {b"a": now_ms()})

    def interrupt(step: str) -> None:
        if step == "offsets":
            assert transaction_of(broker, f"mover-{topic}-1").state == "Ongoing"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), mover_of(broker, topic, on_step=interrupt) as mover:
        turn_until(mover, lambda: False)
    assert transaction_of(broker, f"mover-{topic}-1").state in ("PrepareAbort", "CompleteAbort")
