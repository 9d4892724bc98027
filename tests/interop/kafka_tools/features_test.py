"""kafka-features beside Apache Kafka's own, whose jars are those of 4.3.1: levels that are newer are not compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.interop.kafka_tools.comparison import Comparison, run_ottla

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOOL = "kafka-features"
RELEASES = (
    *("3.2", "3.3", "3.3-IV2", "3.3-IV3", "3.4", "3.5", "3.5-IV0", "3.6", "3.6-IV0", "3.7.1", "3.7-IV3", "3.8", "3.9"),
    *("4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0", "4.1-IV0", "4.1", "4.2-IV0", "4.2", "4.3.1"),
    *("4", "4.0.", "4.0..1", "4.0-IV9", "4.0-IV1.x"),
)


@pytest.fixture
def features(both: Comparison) -> Iterator[Comparison]:
    """Both sides, over a broker that afterwards has its levels back for other tests."""
    yield both
    code, shown = change(both, "upgrade", 2)
    assert code == 0, shown


def change(both: Comparison, command: str, level: int) -> tuple[int, str]:
    words = ["--bootstrap-server", both.bootstrap, command, "--feature", f"transaction.version={level}"]
    return run_ottla(TOOL, words)


def test_features(features: Comparison) -> None:
    features.compare(
        TOOL,
        """
        BS describe
        BS describe --node-id 1
        BS describe --node -1
        BS upgrade --feature transaction.version=1
        BS downgrade --feature transaction.version=1 --dry-run
        BS describe
        BS downgrade --feature transaction.version=1
        BS describe
        BS upgrade --feature=transaction.version=2 --dry-run
        BS upgrade --fea transaction.version=2
        BS disable --feature transaction.version --dry-run
        BS disable --feature transaction.version --unsafe
        BS downgrade --feature transaction.version=2
        BS downgrade --feature transaction.version=9
        BS upgrade --feature a=1 --feature transaction.version=9
        BS upgrade --metadata 3.9 --dry-run
        BS upgrade --metadata 4.0-IV1 --feature transaction.version=2
        BS downgrade --metadata 3.9 --unsafe
        BS upgrade --release-version 3.9
        BS upgrade --release-version 4.0
        BS disable --feature a=1
        BS describe
        """,
    )
    # The changes of the comparison are those of Apache Kafka's tool, which runs first.
    assert change(features, "upgrade", 2) == (0, "transaction.version was upgraded to 2.\n")
    assert change(features, "downgrade", 1) == (0, "transaction.version was downgraded to 1.\n")
    features.compare(TOOL, "BS describe")


def test_wrong_words_of_features(both: Comparison) -> None:
    both.compare(
        TOOL,
        """
        BS
        describe
        -v
        BS nonsense
        BS describe x
        BS describe --node-id x
        BS describe --node-id
        BS --boot x describe
        BS upgrade
        BS disable
        BS upgrade --nonsense
        BS upgrade --unsafe
        BS upgrade --dry-run=x
        BS upgrade --feature
        BS upgrade --feature x
        BS upgrade --feature x=
        BS upgrade --feature x=1_0
        BS upgrade --feature x=40000
        BS upgrade --feature x=-1
        BS upgrade --feature x=0 --feature y
        BS upgrade --feature =1
        BS upgrade --feature ' x = 1 '
        BS upgrade --feature x=1 --feature x=2
        BS upgrade --metadata 9
        BS upgrade --metadata 4.0 --feature metadata.version=4
        BS upgrade --metadata 4.0 --feature x
        BS upgrade --release-version 9
        BS upgrade --release-version 4.0 --metadata 4.0
        BS downgrade --release-version 4.0 --feature x
        BS disable --feature x --feature x
        BS disable --feature ''
        feature-dependencies
        feature-dependencies --feature x
        feature-dependencies --feature x=1
        """,
    )


def test_levels_of_releases(both: Comparison) -> None:
    mappings = "\n".join(f"version-mapping --release-version {each}" for each in RELEASES)
    levels = {"metadata.version": range(6, 32), "kraft.version": range(-1, 3), "transaction.version": range(-1, 4)}
    levels |= dict.fromkeys(("group.version", "eligible.leader.replicas.version", "streams.version"), range(-1, 3))
    levels |= {"share.version": range(-1, 2)}
    dependencies = "\n".join(
        f"feature-dependencies --feature group.version=0 --feature {name}={level}"
        for name, some in levels.items()
        for level in some
    )
    both.compare(TOOL, f"{mappings}\n{dependencies}")


@pytest.mark.parametrize(
    "command", ["describe", "upgrade", "downgrade", "disable", "version-mapping", "feature-dependencies"]
)
def test_usage_of_features(both: Comparison, command: str) -> None:
    """The usage; the descriptions of options are Ottla's own."""
    code, theirs = both.shell.run(TOOL, command, "-h", "--nonsense")
    assert (code, theirs.partition("\n\n")[0]) == (0, run_ottla(TOOL, [command, "-h"])[1].partition("\n\n")[0])
