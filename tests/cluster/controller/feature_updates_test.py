"""The controller finalizes features: with brokers that lack them, lost answers, and writers by hand.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.cluster.features.feature_levels import (
    TRANSACTION_VERSION,
    FeatureUpdate,
    FinalizedFeatures,
    UpgradeType,
    decode_levels,
    encode_levels,
    registered_features,
)
from ottla.cluster.store.layout import FEATURE
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Kind, Op

LOWER = FeatureUpdate(TRANSACTION_VERSION, 1, UpgradeType.SAFE_DOWNGRADE)


def update(controller, *updates: FeatureUpdate, validate_only: bool = False) -> FinalizedFeatures:
    return controller.ask(lambda c, done: c.update_features(updates, validate_only, 60_000, done))


def new_cluster(house):
    for broker in (1, 2):
        house.broker(broker, features=registered_features())
    return house.candidate(1)


def test_levels_are_written_once(house) -> None:
    controller = new_cluster(house)
    assert decode_levels(house.data(FEATURE)) == {}
    assert update(controller, LOWER) == FinalizedFeatures({TRANSACTION_VERSION: 1}, 1)
    assert decode_levels(house.data(FEATURE)) == {TRANSACTION_VERSION: 1}
    since = len(house.submissions)
    assert update(controller, LOWER).epoch == 1
    assert len(house.submissions) == since


def test_validation_writes_nothing(house) -> None:
    controller = new_cluster(house)
    assert update(controller, LOWER, validate_only=True).levels == {}
    assert decode_levels(house.data(FEATURE)) == {}


def test_a_broker_of_release_0_1_refuses_every_change(house) -> None:
    controller = new_cluster(house)
    old = house.broker(3)
    with pytest.raises(ApiError, match="Broker 3 does not support this feature") as error:
        update(controller, LOWER)
    assert error.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert decode_levels(house.data(FEATURE)) == {}
    old.down()
    assert update(controller, LOWER).levels == {TRANSACTION_VERSION: 1}


def test_a_lost_answer_is_looked_up(house) -> None:
    controller = new_cluster(house)
    controller.link.lose_answers = 1
    assert update(controller, LOWER) == FinalizedFeatures({TRANSACTION_VERSION: 1}, 1)
    assert house.node(FEATURE).version == 1


def test_a_writer_by_hand_in_between(house) -> None:
    controller = new_cluster(house)
    controller.link.delay_ns = 100_000_000
    box = controller.begin(lambda c, done: c.update_features([LOWER], False, 60_000, done))
    house.settle(0.35)
    house.write(Op("put", FEATURE, encode_levels({"x": 0})))
    house.settle(5)
    assert box == [FinalizedFeatures({TRANSACTION_VERSION: 1, "x": 0}, 2)]


def test_a_damaged_node_is_named(house) -> None:
    controller = new_cluster(house)
    house.write(Op("put", FEATURE, b"{"))
    with pytest.raises(ApiError, match=r"/feature.*delete the node") as error:
        update(controller, LOWER)
    assert error.value.code is ErrorCode.FEATURE_UPDATE_FAILED


def test_the_next_controller_answers(house) -> None:
    controller = new_cluster(house)
    second = house.candidate(2)
    controller.link.cut = Kind.EXPIRED
    controller.turn(controller.seat.on_session_lost)
    house.in_store(controller.link.session.close_session)
    house.settle()
    assert update(second, LOWER).levels == {TRANSACTION_VERSION: 1}
