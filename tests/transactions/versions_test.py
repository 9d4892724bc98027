"""A whole broker under every finalized `transaction.version`: what it announces, sends and writes.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.handnode import records
from tests.transactions.hand import Hand, Markers

from ottla.cluster.features.feature_levels import TRANSACTION_VERSION, encode_levels
from ottla.cluster.store.layout import FEATURE
from ottla.errors import ErrorCode
from ottla.record.internal.parsing import parse_record
from ottla.record.internal.transactions import TRANSACTION_RECORDS, TransactionLogValue
from ottla.seams import Op
from ottla.transactions.service import TOPIC
from ottla.wire.apis import ApiKey
from ottla.wire.header import decode_request_header
from ottla.wire.messages import ApiVersionsRequest, UpdateFeaturesRequest

UPGRADE, SAFE, UNSAFE = 1, 2, 3


@pytest.fixture
def hand() -> Hand:
    return Hand().started()


def update(hand: Hand, level: int, kind: int = SAFE, version: int = 2, name: str = TRANSACTION_VERSION, **more):
    key = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level)
    if version:
        key.upgrade_type = kind
    else:
        key.allow_downgrade = kind != UPGRADE
    return hand.ask(UpdateFeaturesRequest(feature_updates=[key], **more), version)


def announced(hand: Hand) -> tuple[int, dict[str, int]]:
    answer = hand.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
    return answer.finalized_features_epoch, {each.name: each.max_version_level for each in answer.finalized_features}


def written(hand: Hand) -> list[tuple[int, TransactionLogValue]]:
    """The values of `__transaction_state`, with their versions."""
    found = []
    for partition in range(4):
        for each in records(hand.node.fetch(TOPIC, 0, partition=partition).records):
            record = parse_record(TRANSACTION_RECORDS, each.key, each.value)
            found.append((int.from_bytes(each.value[:2]), record.value))
    return found


class MarkerVersions:
    """The versions of requests with markers."""

    def __init__(self, marks: Markers) -> None:
        self.seen: list[int] = []
        network = marks.node.network
        call = network.call_broker

        def call_broker(target, frame, deadline_ns, done, lane="") -> None:
            header = decode_request_header(memoryview(frame))
            if header.api_key == ApiKey.WRITE_TXN_MARKERS:
                self.seen.append(header.api_version)
            call(target, frame, deadline_ns, done, lane)

        network.call_broker = call_broker


def run_transaction(hand: Hand, level: int) -> None:
    """As a client does that has read this level."""
    hand.add(version=3)
    assert hand.produce(b"x") == 0
    assert hand.end(version=5 if level >= 2 else 4).error_code == 0
    hand.node.pass_ms(2000)


@pytest.mark.parametrize(("level", "value", "markers"), [(0, 0, 1), (1, 1, 1), (2, 1, 2)])
def test_nothing_of_a_newer_kind_is_written_or_sent(hand: Hand, level: int, value: int, markers: int) -> None:
    assert update(hand, level).error_code == 0
    before = len(written(hand))
    seen = MarkerVersions(hand.marks).seen
    hand.init()
    run_transaction(hand, level)
    hand.add(version=3)
    hand.node.pass_ms(80_000)  # it times out, and is aborted by the coordinator
    versions = [version for version, _ in written(hand)[before:]]
    assert set(versions) == {value}
    assert len(versions) > 5
    assert set(seen) == {markers}
    assert hand.state == "CompleteAbort"
    if level < 2:
        assert {each.client_transaction_version for _, each in written(hand)[before:]} == {0}


def test_a_change_is_announced_and_outlives_a_restart(hand: Hand) -> None:
    assert announced(hand) == (0, {TRANSACTION_VERSION: 2})
    assert update(hand, 1).error_code == 0
    assert announced(hand) == (1, {TRANSACTION_VERSION: 1})
    hand.restart()
    assert announced(hand) == (1, {TRANSACTION_VERSION: 1})
    assert update(hand, 0).error_code == 0
    assert announced(hand) == (2, {})
    assert update(hand, 2, UPGRADE).error_code == 0
    assert announced(hand) == (3, {TRANSACTION_VERSION: 2})


def test_a_transaction_continues_over_every_change(hand: Hand) -> None:
    """Old records are read under each level, and a transaction that began under another one ends."""
    for level, kind in ((1, SAFE), (0, SAFE), (2, UPGRADE), (0, UNSAFE), (1, UPGRADE)):
        hand.init()
        hand.add(version=3)
        assert hand.produce(b"x") == 0
        assert update(hand, level, kind).error_code == 0
        hand.restart()
        assert hand.end(version=4).error_code == 0
        hand.node.pass_ms(2000)
        assert hand.state == "CompleteCommit"


def test_a_producer_of_the_newest_version_after_a_downgrade(hand: Hand) -> None:
    """Its client has read level 2. Nothing of its transaction is lost by the older record."""
    assert update(hand, 0).error_code == 0
    seen = MarkerVersions(hand.marks).seen
    run_transaction(hand, 2)
    assert seen[0] == 2
    assert hand.state == "CompleteCommit"
    assert hand.epoch == 1
    assert (1, 2) in [(version, each.client_transaction_version) for version, each in written(hand)]
    hand.restart()
    hand.add(version=3)
    assert hand.produce(b"y") == 0
    assert hand.end(version=5).error_code == 0


@pytest.mark.parametrize("version", range(3))
def test_every_version_of_the_request(hand: Hand, version: int) -> None:
    answer = update(hand, 1, SAFE, version)
    assert answer.error_code == 0
    assert [each.feature for each in answer.results] == ([TRANSACTION_VERSION] if version < 2 else [])
    refused = update(hand, 0, UPGRADE, version)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "upgrade type" in refused.error_message
    assert announced(hand)[1] == {TRANSACTION_VERSION: 1}


def test_refused_requests_change_nothing(hand: Hand) -> None:
    key = UpdateFeaturesRequest.FeatureUpdateKey(feature=TRANSACTION_VERSION, max_version_level=1, upgrade_type=SAFE)
    for updates in ([], [key, key], [UpdateFeaturesRequest.FeatureUpdateKey(feature=str(at)) for at in range(101)]):
        assert hand.ask(UpdateFeaturesRequest(feature_updates=updates), 2).error_code == ErrorCode.INVALID_REQUEST
    assert update(hand, 20, name="metadata.version").error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert update(hand, 1, validate_only=True).error_code == 0
    assert announced(hand) == (0, {TRANSACTION_VERSION: 2})


def test_a_level_of_a_later_release_stops_the_start(hand: Hand) -> None:
    put_levels(hand, {TRANSACTION_VERSION: 3})
    hand.node.restart_without_waiting()
    hand.node.pass_ms(3000)
    assert not hand.node.broker.ready
    assert "finalized level 3 of the feature transaction.version" in str(hand.node.broker.failed)


def test_a_running_broker_keeps_the_last_levels_that_it_can_follow(hand: Hand) -> None:
    update(hand, 1)
    put_levels(hand, {TRANSACTION_VERSION: 3})
    assert announced(hand) == (1, {TRANSACTION_VERSION: 1})
    put_levels(hand, {TRANSACTION_VERSION: 0})
    assert announced(hand) == (3, {})


def put_levels(hand: Hand, levels: dict[str, int]) -> None:
    """As an operator, or a later release, writes the node."""
    store = hand.node.broker._metadata.stores.watched
    done: list[object] = []
    ops = [Op("put", FEATURE, encode_levels(levels))]
    hand.node.process.post_turn(0, "hand", store.submit_ops, "hand", ops, done.append)
    hand.node.pass_ms(200)
    assert len(done) == 1


def test_old_values_are_those_of_the_declared_message() -> None:
    hand = Hand().started()
    update(hand, 0)
    hand.init()
    hand.add(("t", 0), ("t", 1), version=3)
    (version, value) = written(hand)[-1]
    assert version == 0
    assert [(each.topic, each.partition_ids) for each in value.transaction_partitions] == [("t", [0, 1])]
