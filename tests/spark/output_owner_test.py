"""An output belongs to one checkpoint: another query is refused, also when both begin together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.spark.attempts import Bench

from ottla.client.admin.transactions import TransactionAdmin
from ottla.client.batch_transaction import ConnectionCache
from ottla.client.positions import OffsetAndMetadata
from ottla.client.stable_positions import stable_positions
from ottla.spark.errors import BadCheckpoint, OtherCheckpoint
from ottla.spark.sink import output_owner
from ottla.spark.sink.exactly_once import MARKER
from ottla.spark.sink.output_owner import REFRESH_HOURS, claim_output

pytestmark = [pytest.mark.slow, pytest.mark.interop]


@pytest.fixture(autouse=True)
def other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins as a process that knows no owner."""
    monkeypatch.setattr(output_owner, "_known", {})


def forget() -> None:
    output_owner._known.clear()


def stored(links: ConnectionCache, name: str) -> OffsetAndMetadata:
    return stable_positions(links.coordinators.groups, name, [MARKER])[MARKER]


def test_the_first_query_owns_the_output_and_another_is_refused(bench: Bench) -> None:
    links, name = bench.links(), f"ottla-{bench.topic}-owner"
    claim_output(links, name, "query-1", 60_000)
    for _ in range(2):
        forget()
        claim_output(links, name, "query-1", 60_000)
        with pytest.raises(OtherCheckpoint, match=r"belongs to the checkpoint of query query-1, and this is query-?"):
            claim_output(links, name, "query-2", 60_000)
    claim_output(links, f"{name}-other", "query-2", 60_000)


def test_the_transaction_of_the_owner_ends_soon_after_the_death_of_its_task(bench: Bench) -> None:
    links, name = bench.links(), f"ottla-{bench.topic}-owner"
    claim_output(links, name, "query-1", 600_000)
    assert TransactionAdmin(links.cluster).describe_transaction(name).timeout_ms == 10_000


def test_of_queries_that_begin_together_one_is_the_owner(bench: Bench) -> None:
    """Each with several tasks, in processes of their own."""
    name, start = f"ottla-{bench.topic}-owner", threading.Barrier(6)
    connections = [bench.links() for _ in range(6)]

    def claim(number: int) -> str | None:
        start.wait(60)
        try:
            claim_output(connections[number], name, f"query-{number % 3}", 60_000)
        except OtherCheckpoint:
            return None
        return f"query-{number % 3}"

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(claim, range(6)))
    owners = {owner for owner in found if owner}
    assert len(owners) == 1
    assert found.count(None) == 4


def test_the_owner_is_written_again_before_brokers_forget_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    links, name = bench.links(), f"ottla-{bench.topic}-owner"
    hour = [1_000]
    monkeypatch.setattr(output_owner, "wall_ms", lambda: hour[0] * 3_600_000 + 5)
    for now, written in ((1_000, 1_000), (1_000 + REFRESH_HOURS - 1, 1_000), (1_000 + REFRESH_HOURS, 1_012)):
        hour[0] = now
        claim_output(links, name, "query", 60_000)
        assert stored(links, name).metadata == f'{{"q":"query","h":{written}}}'


@pytest.mark.parametrize("metadata", ["", "{", "[]", '{"q":"query"}', '{"q":1,"h":"x"}'])
def test_a_position_of_another_program_is_named(bench: Bench, metadata: str) -> None:
    links, name = bench.links(), f"ottla-{bench.topic}-owner"
    transaction = output_owner.BatchTransaction(links, name, 60_000)
    transaction.fence_producer()
    output_owner.send_marker(transaction, name, OffsetAndMetadata(1, -1, metadata))
    output_owner.end_transaction(links, transaction.prepared_transaction(), commit=True)
    with pytest.raises(BadCheckpoint, match="a position that the sink did not write"):
        claim_output(links, name, "query", 60_000)
