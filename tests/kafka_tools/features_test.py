"""kafka-features with brokers of other features, with brokers that refuse, and without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.errors import ErrorCode
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.wire.apis import ApiKey
from ottla.wire.messages import ApiVersionsResponse, UpdateFeaturesResponse


class Features:
    """The features of a scripted broker."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.supported: dict[str, tuple[int, int]] = {}
        self.finalized: dict[str, int] = {}
        self.epoch = -1

    def answer(self, request: Request) -> bytes:
        """ApiVersions with the features."""
        kind = ApiVersionsResponse
        versions = self.broker.versions.items()
        return request.reply(
            kind(
                api_keys=[
                    kind.ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in versions
                ],
                supported_features=[
                    kind.SupportedFeatureKey(name=name, min_version=low, max_version=high)
                    for name, (low, high) in self.supported.items()
                ],
                finalized_features_epoch=self.epoch,
                finalized_features=[
                    kind.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                    for name, level in self.finalized.items()
                ],
            )
        )


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    scripted.on[ApiKey.UPDATE_FEATURES] = lambda request: request.reply(UpdateFeaturesResponse())
    yield scripted
    scripted.close()


def run(broker: ScriptedBroker, words: str) -> int:
    return run_tool(load_tool("kafka-features"), ["--bootstrap-server", broker.bootstrap, *words.split()])


@pytest.mark.parametrize("words", ["describe", "describe --node-id 0"])
def test_features_of_a_broker(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], words: str) -> None:
    features = Features(broker)
    features.supported = {"metadata.version": (1, 33), "x" * 45: (0, 0), "kraft.version": (0, 1)}
    features.finalized = {"metadata.version": 40, "unknown": 3}
    broker.on[ApiKey.API_VERSIONS] = features.answer
    assert run(broker, words) == 0
    kraft, metadata, long = capsys.readouterr().out.splitlines()
    # The columns of Kafka 4: two spaces after a column, also where a value is wider than it.
    assert kraft == (
        f"Feature: {'kraft.version':<42}SupportedMinVersion: {'0':<17}SupportedMaxVersion: {'1':<17}"
        f"FinalizedVersionLevel: {'0':<17}Epoch: -"
    )
    assert metadata.split("Supported")[1:] == [
        "MinVersion: UNKNOWN 1        ",
        "MaxVersion: 4.4-IV2          FinalizedVersionLevel: UNKNOWN 40       Epoch: -",
    ]
    assert long.startswith(f"Feature: {'x' * 45}  SupportedMinVersion: 0 ")
    features.epoch = 7
    assert run(broker, words) == 0
    assert capsys.readouterr().out.count("Epoch: 7\n") == 3


def test_a_node_that_is_not_there(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "short").write_text("default.api.timeout.ms=300\n")
    assert run(broker, f"--command-config {tmp_path}/short describe --node-id 99") == 1
    shown = capsys.readouterr().err
    timeout = "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment."
    assert shown.startswith(timeout)
    assert "broker 99 is not in the cluster" in shown
    assert run(broker, "describe --node-id -1") == 1
    assert capsys.readouterr().err == "Invalid node id -1: must be non-negative.\n"


def test_kinds_of_changes(broker: ScriptedBroker) -> None:
    for words in (
        "upgrade --feature b=2 --feature a=1 --dry-run",
        "downgrade --release-version 3.9",
        "disable --feature a --unsafe",
    ):
        assert run(broker, words) == 0
    upgrade, downgrade, disable = (asked.message() for asked in broker.asked(ApiKey.UPDATE_FEATURES))
    assert [(each.feature, each.max_version_level, each.upgrade_type) for each in upgrade.feature_updates] == [
        ("a", 1, 1),
        ("b", 2, 1),
    ]
    assert (upgrade.validate_only, downgrade.validate_only) == (True, False)
    levels = {each.feature: each.max_version_level for each in downgrade.feature_updates}
    assert (len(levels), levels["metadata.version"], levels["kraft.version"], levels["group.version"]) == (7, 21, 1, 0)
    assert {each.upgrade_type for each in downgrade.feature_updates} == {2}
    assert [(each.feature, each.max_version_level, each.upgrade_type) for each in disable.feature_updates] == [
        ("a", 0, 3)
    ]


def test_an_upgrade_to_a_release_finalizes_no_level_0(broker: ScriptedBroker) -> None:
    assert run(broker, "upgrade --release-version 3.9") == 0
    (asked,) = broker.asked(ApiKey.UPDATE_FEATURES)
    levels = {each.feature: each.max_version_level for each in asked.message().feature_updates}
    assert levels == {"metadata.version": 21, "kraft.version": 1}


def test_refusals_of_single_features(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka 3 has a result of each feature."""
    row = UpdateFeaturesResponse.UpdatableFeatureResult
    code = int(ErrorCode.INVALID_UPDATE_VERSION)
    rows = [row(feature="b", error_code=code, error_message="Too new."), row(feature="a")]
    broker.versions[ApiKey.UPDATE_FEATURES] = (0, 1)
    broker.on[ApiKey.UPDATE_FEATURES] = lambda request: request.reply(UpdateFeaturesResponse(results=rows))
    assert run(broker, "upgrade --feature b=9 --feature a=1") == 1
    shown = capsys.readouterr()
    assert shown.out == "a was upgraded to 1.\nCould not upgrade b to 9. Too new.\n"
    assert shown.err == "1 out of 2 operation(s) failed.\n"


def test_a_refusal_of_all_features(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    refusal = UpdateFeaturesResponse(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), error_message=None)
    broker.on[ApiKey.UPDATE_FEATURES] = lambda request: request.reply(refusal)
    assert run(broker, "disable --feature b --feature a --dry-run") == 1
    shown = capsys.readouterr()
    assert shown.out == "".join(f"Can not disable {name}. Cluster authorization failed.\n" for name in "ab")
    assert shown.err == "2 out of 2 operation(s) failed.\n"


def test_no_broker(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tool = load_tool("kafka-features")
    (tmp_path / "short").write_text("default.api.timeout.ms=300\n")
    away = ["--bootstrap-server", "127.0.0.1:1", "--command-config", str(tmp_path / "short")]
    assert run_tool(tool, [*away, "describe"]) == 1
    timeout = "Timed out waiting for a node assignment. "
    shown = capsys.readouterr().err
    assert shown.startswith(f"org.apache.kafka.common.errors.TimeoutException: {timeout}")
    assert run_tool(tool, [*away, "upgrade", "--feature", "a=1"]) == 1
    assert capsys.readouterr().out.startswith(f"Could not upgrade a to 1. {timeout}")
    # A look-up needs neither a broker nor the file.
    assert run_tool(tool, ["--command-config", "missing", "version-mapping"]) == 0
    assert run_tool(tool, ["feature-dependencies", "--feature", "group.version=1"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["describe"],
            "Command line error: You must specify either --bootstrap-controller or --bootstrap-server.. Type --help",
        ),
        (["--bootstrap-server", "", "describe"], "Failed to create new KafkaAdminClient: bootstrap.servers is empty"),
        (["--bootstrap-server", "a:1", "--command-config", "missing", "describe"], "missing (No such file"),
        (
            ["--bootstrap-controller", "a:1", "describe"],
            "Command line error: --bootstrap-controller is an option of Apache Kafka's tool that Ottla's does not have",
        ),
    ],
)
def test_a_cluster_that_is_not_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(load_tool("kafka-features"), words) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(message)
    assert len(shown.splitlines()) == 1, "no class of an exception follows"


def test_levels_of_kafka_4_4(capsys: pytest.CaptureFixture[str]) -> None:
    tool = load_tool("kafka-features")
    # The table of Kafka 4.4.0's own jar; the tools that the comparison runs are those of 4.3.1.
    expected = [
        "kraft.version=1",
        "transaction.version=2",
        "group.version=1",
        "eligible.leader.replicas.version=1",
        "share.version=2",
        "streams.version=1",
    ]
    for words, shown in (([], "33 (4.4-IV2)"), (["4.4.1"], "33 (4.4.1)"), (["4.5-IV0"], "34 (4.5-IV0)")):
        option = ["--release-version", *words] if words else []
        assert run_tool(tool, ["version-mapping", *option]) == 0
        assert capsys.readouterr().out.splitlines() == [f"metadata.version={shown}", *expected]
    assert run_tool(tool, ["version-mapping", "--release-version", "4.5"]) == 1
    assert capsys.readouterr().err.endswith("4.3-IV0, 4.4-IV0, 4.4-IV1, 4.4-IV2, 4.5-IV0\n")


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    tool = load_tool("kafka-features")
    assert run_tool(tool, ["-h"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: kafka-features [-h] [--command-config COMMAND_CONFIG]\n")
    names = {word for word in shown.split() if word.startswith("--")}
    assert names == {"--help", "--bootstrap-server", "--command-config", "--version"}
    assert run_tool(tool, ["downgrade", "--help"]) == 0
    shown = capsys.readouterr().out
    names = {word for word in shown.split() if word.startswith("--")}
    assert names == {"--help", "--metadata", "--release-version", "--feature", "--unsafe", "--dry-run"}
    assert run_tool(tool, []) == 1
    assert capsys.readouterr().err == "Command line error: too few arguments. Type --help for help.\n"
