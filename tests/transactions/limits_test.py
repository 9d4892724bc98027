"""Names and numbers of every size, and many of everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.transactions.bench import MS, T0, Bench, Ticket

from ottla.errors import ErrorCode
from ottla.transactions.commands import AddPartitions, EndTransaction, Markers, MarkersWritten
from ottla.transactions.machine import ABORTS_PER_STEP, FORGOTTEN_PER_STEP, PARTITIONS_PER_STEP
from ottla.transactions.rules import MAX_ID_BYTES
from ottla.transactions.state import ProducerIdentity, TransactionStatus
from ottla.types import TopicPartition

WHO = ProducerIdentity(1000, 0)
MAX_MESSAGE_BYTES = 1_048_588


def test_ids_of_every_length() -> None:
    for name in ("a", "é" * 100, "x" * MAX_ID_BYTES, "\U0001f600" * (MAX_ID_BYTES // 4)):
        bench = Bench()
        assert bench.init(name).value == WHO
        bench.lead()
        assert bench.add(name, WHO, T0).value is None
    for name in ("", "x" * (MAX_ID_BYTES + 1), "\U0001f600" * (MAX_ID_BYTES // 4 + 1)):
        bench = Bench()
        asked = [bench.init(name), bench.add(name, WHO, T0), bench.verify(name, WHO, T0), bench.end(name, WHO, True)]
        asked.append(bench.describe(name))
        assert [ticket.value for ticket in asked] == [ErrorCode.INVALID_REQUEST] * 5
        assert not bench.records


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1))
def test_identities_and_times_of_every_size(producer_id: int, epoch: int, timeout_ms: int) -> None:
    bench = Bench()
    bench.init("a")
    identity = ProducerIdentity(producer_id, epoch)
    for ticket in (
        bench.init("a", identity, timeout_ms),
        bench.add("a", identity, T0),
        bench.verify("a", identity, T0),
        bench.end("a", identity, True),
        bench.end("a", identity, False, version=0),
    ):
        assert len(ticket) == 1


def test_a_transaction_that_can_be_journaled_can_be_ended() -> None:
    name = "a" * MAX_ID_BYTES
    bench = Bench()
    bench.init(name)
    bench.age(name, 32_766)
    who = ProducerIdentity(1000, 32_766)
    longest = [TopicPartition(f"{index:06}".rjust(249, "t"), 2**31 - 1) for index in range(3800)]
    assert bench.add(name, who, *longest[:3770]).value is None
    assert bench.add(name, who, *longest).value is ErrorCode.MESSAGE_TOO_LARGE
    assert bench.end(name, who, True).value == ProducerIdentity(1001, 0)
    assert max(len(key) + len(value or b"") for key, value in bench.records) + 100 < MAX_MESSAGE_BYTES


def test_many_partitions_of_few_topics() -> None:
    bench = Bench()
    bench.init("a")
    assert bench.add("a", WHO, *(TopicPartition("t", index) for index in range(20_000))).value is None


def steps_of(bench: Bench, ms: int) -> list[int]:
    """Let time pass. Returns the number of records that each step has journaled."""
    steps: list[int] = []
    carry_out = bench._carry_out

    def counted(outcome: object) -> bool:
        steps.append(len(outcome.records))  # type: ignore[attr-defined]
        return carry_out(outcome)  # type: ignore[arg-type]

    bench._carry_out = counted  # type: ignore[method-assign,assignment]
    bench.pass_ms(ms)
    return [count for count in steps if count]


def test_many_time_out_at_once() -> None:
    bench = Bench()
    for number in range(3 * ABORTS_PER_STEP - 10):
        bench.init(f"x{number}")
        bench.add(f"x{number}", ProducerIdentity(1000 + number, 0), T0)
    assert steps_of(bench, 80_000) == [ABORTS_PER_STEP, ABORTS_PER_STEP, ABORTS_PER_STEP - 10]
    assert len(bench.sent) == 3 * ABORTS_PER_STEP - 10
    assert all(not markers.commit for markers in bench.sent)


def test_large_ones_time_out_one_by_one() -> None:
    bench = Bench()
    for number in range(3):
        bench.init(f"x{number}")
        partitions = [TopicPartition("t", index) for index in range(PARTITIONS_PER_STEP - 1)]
        bench.add(f"x{number}", ProducerIdentity(1000 + number, 0), *partitions)
    assert steps_of(bench, 80_000) == [1, 1, 1]


def test_short_transactions_share_a_search_for_time_outs() -> None:
    bench = Bench()
    bench.init("a")
    bench.pass_ms(60_000)
    looks = 0
    for epoch in range(3):  # each ends before the alarm that it has set
        bench._submit(AddPartitions("a", ProducerIdentity(1000, epoch), (T0,), 2, Ticket()))
        looks += bench.machine.next_deadline() <= bench.now.mono_ns
        bench._submit(EndTransaction("a", ProducerIdentity(1000, epoch), True, 2, Ticket()))
        bench._submit(MarkersWritten("a", ProducerIdentity(1000, epoch + 1), (T0,), Ticket()))
        bench.settle()
        assert bench.state("a").status is TransactionStatus.COMPLETE_COMMIT
    assert looks == 1
    bench.pass_ms(60_000)
    assert bench.machine.next_deadline() > bench.now.mono_ns + 60_000 * MS, "nothing has begun since"


def test_many_are_forgotten_in_steps() -> None:
    bench = Bench()
    for number in range(FORGOTTEN_PER_STEP + 5):
        bench.init(f"x{number}")
    assert steps_of(bench, 604_800_000) == [FORGOTTEN_PER_STEP, 5]
    assert not bench.machine.transactions
    assert bench.machine.next_deadline() is None, "nothing to look for"


def test_long_names_are_forgotten_few_at_a_time() -> None:
    bench = Bench()
    for number in range(8):
        bench.init(f"{number}" * 30_000)
    assert steps_of(bench, 604_800_000) == [3, 3, 2]


def test_a_decision_without_partitions_that_another_broker_left_is_completed() -> None:
    """Kafka journals it in two batches: the coordinator may have died between them."""
    bench = Bench()
    bench.init("a")
    bench.end("a", WHO, commit=False)
    bench.records.pop()
    bench.high_watermark = len(bench.records)
    bench.lead()
    assert bench.state("a").status is TransactionStatus.COMPLETE_ABORT
    assert bench.sent == []


def test_an_answer_to_older_markers_does_not_count_for_newer_ones() -> None:
    bench = Bench()
    bench.init("a")
    bench.add("a", WHO, T0)
    bench.end("a", WHO, commit=True)
    assert bench.written("a", ProducerIdentity(1000, 0), T0).value is None
    assert bench.written("a", ProducerIdentity(999, 1), T0).value is None
    assert bench.written("b", ProducerIdentity(1000, 1), T0).value is None
    assert bench.state("a").status is TransactionStatus.PREPARE_COMMIT
    assert bench.sent == [Markers("a", ProducerIdentity(1000, 1), True, 1, 2, (T0,))]
    assert isinstance(bench.describe("a"), Ticket)
