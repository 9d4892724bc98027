"""kafka-features: show, raise, lower and disable the features of a cluster, and look levels up.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from ottla.client.admin.features import FeatureAdmin, FeatureView, UpgradeType
from ottla.client.cluster import CONTROLLER, Cluster
from ottla.client.errors import ClientError
from ottla.kafka_tools.argument_parser import Command, CommandRules, parse_command
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.java_errors import tool_error
from ottla.kafka_tools.options import COMMAND_CONFIG, Options, Tool, ToolError, WordsReport, flag, value, values
from ottla.kafka_tools.tools.features.known_features import (
    LATEST_STABLE,
    METADATA_VERSION,
    default_levels,
    describe_dependencies,
    level_name,
    metadata_level,
    parse_level,
)

_WRONG: Final = "Command line error: {}. Type --help for help."


def run_features(options: Options) -> None:
    """Carry out the command."""
    # The tables of Kafka's releases: no cluster is asked, and none has to be named.
    if lookup := _LOOKUPS.get(options.words[0]):
        lookup(options)
        return
    if not options.has("bootstrap-server"):
        raise ToolError(_WRONG.format("You must specify either --bootstrap-controller or --bootstrap-server."))
    with _open_cluster(options) as cluster:
        _RUNS[options.words[0]](FeatureAdmin(cluster), options)


def _open_cluster(options: Options) -> Cluster:
    try:
        return open_cluster(options)
    except ClientError as error:
        raise ToolError(f"Failed to create new KafkaAdminClient: {error}") from None
    # Kafka's tool prints the message of an exception without its class.
    except ToolError as error:
        raise ToolError(error.message) from None


def _describe_features(admin: FeatureAdmin, options: Options) -> None:
    node = options.number_of("node-id", CONTROLLER)
    if options.has("node-id") and node < 0:
        raise ToolError(f"Invalid node id {node}: must be non-negative.")
    try:
        found = admin.describe_features(node=node)
    except ClientError as error:
        raise ToolError(tool_error(error, wrapped=True).message) from None
    epoch = found.epoch if found.epoch >= 0 else "-"
    for each in found.features:
        # Kafka's tool does not show a finalized feature that the broker does not know.
        if each.max_level or not each.finalized:
            print(f"{_feature_columns(each)}Epoch: {epoch}")


def _feature_columns(feature: FeatureView) -> str:
    low, high, level = (level_name(feature.name, each) for each in feature[1:])
    name = f"Feature: {feature.name:<40}  SupportedMinVersion: {low:<15}  "
    return f"{name}SupportedMaxVersion: {high:<15}  FinalizedVersionLevel: {level:<15}  "


def _upgrade_features(admin: FeatureAdmin, options: Options) -> None:
    _change_levels(admin, options, UpgradeType.UPGRADE)


def _downgrade_features(admin: FeatureAdmin, options: Options) -> None:
    _change_levels(admin, options, _downgrade_type(options))


def _downgrade_type(options: Options) -> UpgradeType:
    return UpgradeType.UNSAFE_DOWNGRADE if options.has("unsafe") else UpgradeType.SAFE_DOWNGRADE


def _change_levels(admin: FeatureAdmin, options: Options, kind: UpgradeType) -> None:
    if options.has("release-version"):
        if options.has("metadata") or options.has("feature"):
            raise ToolError("Can not specify `release-version` with other feature flags.")
        levels = _release_levels(options.value_of("release-version"), kind)
    else:
        levels = _collect_levels(_given_levels(options), kind)
    _update_features(admin, options, levels, kind)


def _release_levels(version: str, kind: UpgradeType) -> dict[str, int]:
    level = metadata_level(version)
    # An upgrade finalizes no level 0, which means that a feature is disabled.
    others = {name: each for name, each in default_levels(level).items() if each or kind is not UpgradeType.UPGRADE}
    return {METADATA_VERSION: level, **others}


def _given_levels(options: Options) -> Iterator[tuple[str, int]]:
    """Read one by one, so that the first fault in the order of the words is reported, whichever kind it has."""
    if options.has("metadata"):
        print(" `metadata` flag is deprecated and may be removed in a future release.")
        yield METADATA_VERSION, metadata_level(options.value_of("metadata"))
    yield from map(parse_level, options.values_of("feature"))


def _collect_levels(given: Iterable[tuple[str, int]], kind: UpgradeType) -> dict[str, int]:
    levels: dict[str, int] = {}
    for name, level in given:
        if level < 0:
            raise ToolError("Cannot specify a negative version level.")
        if level < 1 and kind is UpgradeType.UPGRADE:
            raise ToolError(
                "The upgradeType flag should be set to SAFE_DOWNGRADE or UNSAFE_DOWNGRADE when the provided "
                f"maxVersionLevel:{level} is < 1."
            )
        if name in levels:
            raise ToolError(f"Feature {name} was specified more than once.")
        levels[name] = level
    return levels


def _disable_features(admin: FeatureAdmin, options: Options) -> None:
    kind = _downgrade_type(options)
    levels = _collect_levels(((name, 0) for name in options.values_of("feature")), kind)
    _update_features(admin, options, levels, kind)


def _update_features(admin: FeatureAdmin, options: Options, levels: dict[str, int], kind: UpgradeType) -> None:
    """Finalize the levels, and print the result of each feature. Raises ToolError if one was refused."""
    command, dry = options.words[0], options.has("dry-run")
    if not levels:
        raise ToolError(f"You must specify at least one feature to {command}")
    if not all(name.strip() for name in levels):
        raise ToolError("Provided feature can not be empty.")
    results = _update_results(admin, dict(sorted(levels.items())), kind, dry)
    for name, error in results.items():
        level = "" if command == "disable" else f" to {levels[name]}"
        if error is None:
            print(f"{name} {'can be' if dry else 'was'} {command.removesuffix('e')}ed{level}.")
        else:
            print(f"{'Can' if dry else 'Could'} not {command} {name}{level}. {tool_error(error).message}", flush=True)
    if failed := sum(error is not None for error in results.values()):
        raise ToolError(f"{failed} out of {len(results)} operation(s) failed.")


def _update_results(
    admin: FeatureAdmin, levels: dict[str, int], kind: UpgradeType, dry: bool
) -> dict[str, ClientError | None]:
    try:
        return {**admin.update_each_feature(levels, kind, validate_only=dry)}
    except ClientError as error:
        return dict.fromkeys(levels, error)


def _print_mapping(options: Options) -> None:
    version = options.value_of("release-version", LATEST_STABLE)
    level = metadata_level(version)
    print(f"{METADATA_VERSION}={level} ({version})")
    for name, each in default_levels(level).items():
        print(f"{name}={each}")


def _print_dependencies(options: Options) -> None:
    for word in options.values_of("feature"):
        print(describe_dependencies(*parse_level(word)), flush=True)


_LOOKUPS: Final[dict[str, Callable[[Options], None]]] = {
    "version-mapping": _print_mapping,
    "feature-dependencies": _print_dependencies,
}
_RUNS: Final[dict[str, Callable[[FeatureAdmin, Options], None]]] = {
    "describe": _describe_features,
    "upgrade": _upgrade_features,
    "downgrade": _downgrade_features,
    "disable": _disable_features,
}
_METADATA: Final = value("metadata", "DEPRECATED: the metadata.version, as 3.3-IV3.")
_RELEASE: Final = value("release-version", "A release, as 4.0: all features get the levels of version-mapping.")
_LEVEL: Final = values("feature", "A feature and its level, as metadata.version=5; may be repeated.")
_UNSAFE: Final = flag("unsafe", "Also if metadata may be lost.")
_DRY_RUN: Final = flag("dry-run", "Check only; change nothing.")
_COMMANDS: Final = (
    Command(
        "describe",
        "show the levels that are supported and finalized",
        (value("node-id", "The broker that is asked; the controller's by default."),),
        numbers={"node-id": "Integer"},
    ),
    Command("upgrade", "raise the levels of features", (_METADATA, _RELEASE, _LEVEL, _DRY_RUN)),
    Command("downgrade", "lower the levels of features", (_METADATA, _RELEASE, _LEVEL, _UNSAFE, _DRY_RUN)),
    Command(
        "disable",
        "disable features: lower them to level 0",
        (values("feature", "A feature; may be repeated."), _UNSAFE, _DRY_RUN),
    ),
    Command(
        "version-mapping",
        "show the levels of all features in a release",
        (value("release-version", f"A release or metadata.version; {LATEST_STABLE} by default."),),
    ),
    Command("feature-dependencies", "show the levels that a level requires", (_LEVEL,), ("feature",)),
)
_RULES: Final = CommandRules(
    "kafka-features",
    ("[--command-config COMMAND_CONFIG]", "[--bootstrap-server BOOTSTRAP_SERVER]"),
    "",
    (),
    _COMMANDS,
    _WRONG,
    "This tool shows and changes the levels of features that all brokers follow.",
)
_OWN: Final = {option.name: option for command in _COMMANDS for option in command.options}
TOOL: Final = Tool(
    _RULES.purpose,
    (
        value("bootstrap-server", "The server(s) to use for bootstrapping."),
        value("bootstrap-controller", "The address of a controller.", "brokers answer for the controller"),
        *COMMAND_CONFIG,
        *_OWN.values(),
    ),
    run_features,
    wrong_words=WordsReport.PLAIN,
    parse=partial(parse_command, _RULES),
)
