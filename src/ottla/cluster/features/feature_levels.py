"""The features of this broker, the levels that a cluster has finalized, and the rules of their changes.

Zone: pure. `/feature` has Kafka's JSON: version 1 has an object with the levels of a feature, version 2 one number.
Levels that were never finalized are those of release 0.1, which does not read the node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ottla.cluster.store.layout import FEATURE, BrokenNode
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Node

TRANSACTION_VERSION: Final = "transaction.version"
UPDATES_MAX: Final = 100
"""Most features in a request."""
_LEVEL_MAX: Final = 32767
_NODE_VERSIONS: Final = (1, 2)


class FeatureRange(NamedTuple):
    """The levels of a feature that a broker supports."""

    min_level: int
    max_level: int
    unfinalized: int
    """The level while none is finalized."""


SUPPORTED: Final[Mapping[str, FeatureRange]] = MappingProxyType({TRANSACTION_VERSION: FeatureRange(0, 2, 2)})
"""The features of this release."""


class FinalizedFeatures(NamedTuple):
    """The levels in the node."""

    levels: Mapping[str, int]
    epoch: int = 0
    """The version of the node, as in Kafka."""

    def level_of(self, name: str) -> int:
        """The level of a supported feature."""
        return self.levels.get(name, SUPPORTED[name].unfinalized)


class FollowedLevel:
    """The level of one feature, which changes when another one is finalized."""

    __slots__ = ("level",)

    def __init__(self, level: int) -> None:
        self.level = level


NOTHING_FINALIZED: Final = FinalizedFeatures(MappingProxyType({}))


class UpgradeType(IntEnum):
    """The kind of a change (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """The wanted level of a feature."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


def encode_levels(levels: Mapping[str, int]) -> bytes:
    """Encode the node with levels, in version 2."""
    return json.dumps({"features": dict(sorted(levels.items())), "version": 2, "status": 1}).encode()


def decode_levels(data: bytes) -> dict[str, int]:
    """The levels in a node of version 1 or 2. Raises BrokenNode."""
    try:
        content = json.loads(data)
        if content["version"] not in _NODE_VERSIONS:
            raise BrokenNode(f"{FEATURE} has version {content['version']!r:.20}, which this release cannot read")
        return {str(name): _decode_level(value) for name, value in content["features"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, BrokenNode):
            raise
        raise BrokenNode(f"{FEATURE} does not contain levels of features") from None


def decode_finalized(node: Node | None) -> FinalizedFeatures:
    """The levels in the node, which may be missing. Raises BrokenNode."""
    if node is None or not node.data:
        return NOTHING_FINALIZED
    return FinalizedFeatures(decode_levels(node.data), node.version)


def _decode_level(value: Any) -> int:
    # Exactly int: JSON's true would count as 1.
    level = value["max_version_level"] if isinstance(value, dict) else value
    if type(level) is not int or not 0 <= level <= _LEVEL_MAX:
        raise ValueError(level)
    return level


def check_supported(levels: Mapping[str, int]) -> None:
    """Raise ApiError UNSUPPORTED_VERSION, with the next step, if a finalized level is not one of this release."""
    # Level 0 is not finalized, so a release without the feature can follow it.
    for name, level in levels.items():
        own = SUPPORTED.get(name, FeatureRange(0, 0, 0))
        if level and not own.min_level <= level <= own.max_level:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster has finalized level {level} of the feature {name:.100}, and this release supports"
                f" {_describe_range(own)}; start the release that finalized it, or downgrade the feature there first"
                f" (ottla cluster features downgrade)",
            )


def _describe_range(own: FeatureRange) -> str:
    return f"levels {own.min_level} to {own.max_level}" if own.max_level else "no level of it"


# -- changes -----------------------------------------------------------------------------------------------------------


def apply_updates(present: FinalizedFeatures, updates: Iterable[FeatureUpdate]) -> dict[str, int]:
    """The levels after all updates. Raises ApiError for the first one that is refused; then none is applied."""
    # Levels of features that this release does not know stay: another release may have finalized them.
    levels = dict(present.levels)
    for update in updates:
        _check_update(present, update)
        levels[update.name] = update.level
    return levels


def _check_update(present: FinalizedFeatures, update: FeatureUpdate) -> None:
    own = SUPPORTED.get(update.name)
    if own is None:
        raise _refuse_update(update, "The controller does not support this feature.")
    if update.level < 0:
        raise _refuse_update(update, "A feature version cannot be less than 0.")
    if update.upgrade_type not in tuple(UpgradeType):
        raise _refuse_update(update, "The controller does not support the given upgrade type.")
    if not own.min_level <= update.level <= own.max_level:
        raise _refuse_update(update, f"The controller only supports versions {own.min_level}-{own.max_level}")
    _check_direction(present.level_of(update.name), update)


def _check_direction(level: int, update: FeatureUpdate) -> None:
    if update.upgrade_type == UpgradeType.UPGRADE and update.level < level:
        kinds = "upgrade type to either safe or unsafe downgrade."
        raise _refuse_update(update, f"Can't downgrade the version of this feature without setting the {kinds}")
    if update.upgrade_type != UpgradeType.UPGRADE and update.level > level:
        raise _refuse_update(update, "Can't downgrade to a newer version.")


def _refuse_update(update: FeatureUpdate, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.level} for feature {update.name:.100}. {reason}",
    )


# -- brokers -----------------------------------------------------------------------------------------------------------


def registered_features() -> dict[str, dict[str, int]]:
    """The features in a broker's registration. Kafka before 3.9 refuses a minimum of 0, and level 0 needs none."""
    return {
        name: {"min_version": max(1, own.min_level), "max_version": own.max_level} for name, own in SUPPORTED.items()
    }


def check_broker(broker: int, data: bytes, updates: Iterable[FeatureUpdate]) -> None:
    """Raise ApiError INVALID_UPDATE_VERSION if a registered broker does not follow one of these levels."""
    features = _decode_features(data)
    for update in updates:
        found = features.get(update.name)
        if not isinstance(found, dict):
            reason = f"Broker {broker} does not support this feature; upgrade it or stop it first."
            raise _refuse_update(update, reason)
        low, high = found.get("min_version"), found.get("max_version")
        if update.level and not (isinstance(low, int) and isinstance(high, int) and low <= update.level <= high):
            raise _refuse_update(update, f"Broker {broker} only supports versions {low!r:.10}-{high!r:.10}")


def _decode_features(data: bytes) -> Mapping[str, Any]:
    try:
        features = json.loads(data)["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}
