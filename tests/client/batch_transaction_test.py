"""Requests of a task's transactions to coordinators, with a scripted broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.client.batch_transaction import ConnectionCache, Prepared, end_transaction, stable_positions
from ottla.client.errors import ProducerFencedError, RefusedError, UnsupportedVersionError
from ottla.client.positions import OffsetAndMetadata
from ottla.client.settings import ClientConfig
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import EndTxnResponse, FindCoordinatorResponse, OffsetFetchRequest, OffsetFetchResponse

WHERE = TopicPartition("t", 0)


class Coordinator:
    """A coordinator that answers with the given errors, one after the other, then with a position or a success."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.errors: list[ErrorCode] = []
        self.broker = broker
        broker.on[ApiKey.FIND_COORDINATOR] = self.find
        broker.on[ApiKey.OFFSET_FETCH] = self.fetch
        broker.on[ApiKey.END_TXN] = self.end

    @property
    def asked(self) -> tuple[int, int]:
        """(number of FindCoordinator requests, number of OffsetFetch requests)."""
        return len(self.broker.asked(ApiKey.FIND_COORDINATOR)), len(self.broker.asked(ApiKey.OFFSET_FETCH))

    def find(self, request: Request) -> bytes:
        here = {"node_id": 0, "host": "127.0.0.1", "port": self.broker.port}
        one = FindCoordinatorResponse.Coordinator(key="g", error_code=0, error_message=None, **here)
        return request.reply(FindCoordinatorResponse(coordinators=[one]))

    def end(self, request: Request) -> bytes:
        code = self.errors.pop(0) if self.errors else ErrorCode.NONE
        return request.reply(EndTxnResponse(error_code=code.value))

    def fetch(self, request: Request) -> bytes:
        message = request.message()
        assert isinstance(message, OffsetFetchRequest)
        assert message.require_stable
        code = self.errors.pop(0) if self.errors else ErrorCode.NONE
        part = OffsetFetchResponse.OffsetFetchResponsePartitions(
            partition_index=0, committed_offset=5, committed_leader_epoch=-1, metadata="m", error_code=code.value
        )
        topic = OffsetFetchResponse.OffsetFetchResponseTopics(name="t", partitions=[part])
        group = OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=[topic], error_code=0)
        return request.reply(OffsetFetchResponse(groups=[group]))


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    broker = ScriptedBroker()
    yield Coordinator(broker)
    broker.close()


@pytest.fixture
def links(coordinator: Coordinator) -> Iterator[ConnectionCache]:
    made = ConnectionCache(ClientConfig(bootstrap_servers=coordinator.broker.bootstrap))
    yield made
    made.close_connections()


def position(links: ConnectionCache) -> OffsetAndMetadata:
    return stable_positions(links.coordinators.groups, "g", [WHERE])[WHERE]


def test_a_coordinator_is_looked_up_once(coordinator: Coordinator, links: ConnectionCache) -> None:
    for _ in range(3):
        assert position(links) == OffsetAndMetadata(5, -1, "m")
    assert coordinator.asked == (1, 3)


def test_a_coordinator_that_moved_is_looked_up_again(coordinator: Coordinator, links: ConnectionCache) -> None:
    position(links)
    coordinator.errors = [ErrorCode.NOT_COORDINATOR]
    assert position(links).offset == 5
    assert coordinator.asked == (2, 3)


def test_open_transactions_are_retried_at_the_same_coordinator(
    coordinator: Coordinator, links: ConnectionCache
) -> None:
    position(links)
    coordinator.errors = [ErrorCode.UNSTABLE_OFFSET_COMMIT] * 3
    assert position(links).offset == 5
    assert coordinator.asked == (1, 5)


def test_an_error_that_is_not_retriable_is_raised(coordinator: Coordinator, links: ConnectionCache) -> None:
    coordinator.errors = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    with pytest.raises(RefusedError) as caught:
        position(links)
    assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_broker_without_stable_positions_is_refused(coordinator: Coordinator, links: ConnectionCache) -> None:
    coordinator.broker.versions[ApiKey.OFFSET_FETCH] = (0, 6)
    with pytest.raises(UnsupportedVersionError, match="Use a newer broker"):
        position(links)


def test_an_end_is_tried_again_while_another_producer_fences(coordinator: Coordinator, links: ConnectionCache) -> None:
    """Kafka's coordinator says UNKNOWN_SERVER_ERROR then; only the next answer says how the transaction ended."""
    prepared = Prepared("id", 1, 0, 1)
    coordinator.errors = [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.PRODUCER_FENCED]
    with pytest.raises(ProducerFencedError):
        end_transaction(links, prepared, commit=True)
    coordinator.errors = [ErrorCode.UNKNOWN_SERVER_ERROR]
    end_transaction(links, prepared, commit=True)
    assert len(coordinator.broker.asked(ApiKey.END_TXN)) == 4
    coordinator.errors = [ErrorCode.INVALID_TXN_STATE]
    with pytest.raises(RefusedError, match="transactional id id: INVALID_TXN_STATE"):
        end_transaction(links, prepared, commit=True)
