"""The rules of finalized features, and the bytes of their node.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.cluster.features.feature_levels import (
    NOTHING_FINALIZED,
    TRANSACTION_VERSION,
    FeatureUpdate,
    FinalizedFeatures,
    apply_updates,
    check_broker,
    check_supported,
    decode_levels,
    encode_levels,
    registered_features,
)
from ottla.cluster.store.layout import BrokenNode, BrokerNode, encode_broker, encode_feature
from ottla.errors import ApiError, ErrorCode

NAME = TRANSACTION_VERSION


@pytest.mark.parametrize(
    ("data", "levels"),
    [
        (encode_feature(), {}),
        (encode_levels({NAME: 1}), {NAME: 1}),
        (b'{"version":1,"status":1,"features":{"a":{"min_version_level":1,"max_version_level":3}}}', {"a": 3}),
        (b'{"version":2,"status":1,"features":{"a":4}}', {"a": 4}),
    ],
)
def test_nodes_of_apache_kafka_are_read(data: bytes, levels: dict[str, int]) -> None:
    assert decode_levels(data) == levels


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{", b"null", b'{"version":3,"status":1,"features":{}}', b'{"version":2,"features":{"a":-1}}',
        b'{"version":2,"features":{"a":true}}', b'{"version":2,"features":{"a":"1"}}', b'{"version":2,"features":[]}',
        b'{"version":2,"features":{"a":32768}}', b'{"version":[1],"features":{}}', b"\xff",
    ],
)  # fmt: skip
def test_other_bytes_are_a_broken_node(data: bytes) -> None:
    with pytest.raises(BrokenNode, match="/feature"):
        decode_levels(data)


def test_a_level_that_was_never_finalized_is_that_of_release_0_1() -> None:
    assert NOTHING_FINALIZED.level_of(NAME) == 2


@pytest.mark.parametrize(
    ("present", "update", "expected"),
    [
        (2, FeatureUpdate(NAME, 2), 2),
        (1, FeatureUpdate(NAME, 2), 2),
        (2, FeatureUpdate(NAME, 1, 2), 1),
        (2, FeatureUpdate(NAME, 0, 3), 0),
        (2, FeatureUpdate(NAME, 1), "without setting the upgrade type"),
        (1, FeatureUpdate(NAME, 2, 2), "downgrade to a newer version"),
        (2, FeatureUpdate(NAME, -1, 2), "less than 0"),
        (2, FeatureUpdate(NAME, 3), "only supports versions 0-2"),
        (2, FeatureUpdate(NAME, 2, 0), "upgrade type"),
        (2, FeatureUpdate(NAME, 2, 4), "upgrade type"),
        (2, FeatureUpdate("metadata.version", 20), "does not support this feature"),
    ],
)
def test_updates(present: int, update: FeatureUpdate, expected: int | str) -> None:
    finalized = FinalizedFeatures({NAME: present})
    if isinstance(expected, int):
        assert apply_updates(finalized, [update]) == {NAME: expected}
        return
    with pytest.raises(ApiError, match=expected) as error:
        apply_updates(finalized, [update])
    assert error.value.code is ErrorCode.INVALID_UPDATE_VERSION


def test_one_refused_update_refuses_all() -> None:
    with pytest.raises(ApiError):
        apply_updates(NOTHING_FINALIZED, [FeatureUpdate(NAME, 1, 2), FeatureUpdate("x" * 40_000, 1)])


def test_a_level_that_this_release_lacks_is_named() -> None:
    check_supported({NAME: 2, "x": 0})
    with pytest.raises(ApiError, match=r"level 3 of the feature transaction\.version.*levels 0 to 2"):
        check_supported({NAME: 3})
    with pytest.raises(ApiError, match=r"level 1 of the feature share\.version.*no level of it.*downgrade"):
        check_supported({"share.version": 1})


def test_brokers_register_what_they_follow() -> None:
    present = encode_broker(BrokerNode((), None, features=registered_features()), 1)
    for level in (0, 1, 2):
        check_broker(1, present, [FeatureUpdate(NAME, level)])
    for data in (encode_broker(BrokerNode((), None), 1), b"{}", b"[]", b"", b'{"features":7}'):
        with pytest.raises(ApiError, match="Broker 7 does not support this feature; upgrade it"):
            check_broker(7, data, [FeatureUpdate(NAME, 0, 2)])
    older = encode_broker(BrokerNode((), None, features={NAME: {"min_version": 1, "max_version": 1}}), 1)
    check_broker(7, older, [FeatureUpdate(NAME, 1)])
    with pytest.raises(ApiError, match="Broker 7 only supports versions 1-1"):
        check_broker(7, older, [FeatureUpdate(NAME, 2)])
