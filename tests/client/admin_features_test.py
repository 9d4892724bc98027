"""Changes of feature levels, with a scripted broker that answers as Kafka 3 does, and as Kafka 4 does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.client import ClientConfig, Cluster, RefusedError
from ottla.client.admin.features import FeatureAdmin, UpgradeType
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import UpdateFeaturesResponse

LEVELS = {"metadata.version": 99, "transaction.version": 1}


@pytest.fixture
def admin(broker: ScriptedBroker) -> Iterator[FeatureAdmin]:
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": broker.bootstrap})) as cluster:
        yield FeatureAdmin(cluster)


def answer_each(request: Request) -> bytes:
    """Refuses metadata.version alone, in the answer's row for it."""
    row = UpdateFeaturesResponse.UpdatableFeatureResult
    code = int(ErrorCode.INVALID_UPDATE_VERSION)
    rows = [row(feature="metadata.version", error_code=code, error_message="No."), row(feature="transaction.version")]
    return request.reply(UpdateFeaturesResponse(results=rows))


def test_one_of_two_features_is_refused(broker: ScriptedBroker, admin: FeatureAdmin) -> None:
    broker.versions[ApiKey.UPDATE_FEATURES] = (0, 1)
    broker.on[ApiKey.UPDATE_FEATURES] = answer_each
    results = admin.update_each_feature(LEVELS, UpgradeType.SAFE_DOWNGRADE)
    assert results.keys() == LEVELS.keys()
    refused = results["metadata.version"]
    assert refused is not None
    assert (refused.code, refused.message) == (ErrorCode.INVALID_UPDATE_VERSION, "No.")
    assert results["transaction.version"] is None
    # The answer as a whole has no error, and is not a success.
    with pytest.raises(RefusedError, match=r"feature metadata\.version: INVALID_UPDATE_VERSION: No"):
        admin.update_features(LEVELS, UpgradeType.SAFE_DOWNGRADE)


def test_an_answer_without_rows(broker: ScriptedBroker, admin: FeatureAdmin) -> None:
    broker.on[ApiKey.UPDATE_FEATURES] = lambda request: request.reply(UpdateFeaturesResponse())
    assert admin.update_each_feature(LEVELS) == dict.fromkeys(LEVELS)
    admin.update_features(LEVELS)
    code = int(ErrorCode.INVALID_UPDATE_VERSION)
    refusal = UpdateFeaturesResponse(error_code=code, error_message="None of them.")
    broker.on[ApiKey.UPDATE_FEATURES] = lambda request: request.reply(refusal)
    with pytest.raises(RefusedError, match="None of them"):
        admin.update_each_feature(LEVELS)
