"""Owners of settings as words of a command: `topic/orders`, `broker/1`, `broker/default`, `logger/1`, `group/billing`.

Zone: real. Parses words, and reads the settings of an owner; `commands.cluster.config` prints and changes them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import click

from ottla.cli.failure import CommandFailed
from ottla.client import Admin, Cluster, ConfigChange, ConfigEntry, ConfigOp, Resource, ResourceType, UsageError
from ottla.client.errors import ClientError, UnsupportedVersionError

DEFAULT: Final = "default"
"""The name of the settings that all brokers have."""
_KINDS: Final = {
    "topic": ResourceType.TOPIC,
    "broker": ResourceType.BROKER,
    "logger": ResourceType.BROKER_LOGGER,
    "group": ResourceType.GROUP,
    "client-metrics": ResourceType.CLIENT_METRICS,
}
_KAFKAS: Final = {"broker-logger": "logger"}
"""Kafka's names of the same kinds; its plurals are accepted as well."""
_QUOTAS: Final = frozenset({"client", "user", "ip"})
_CHANGE: Final = re.compile(r"([^=]+?)([+-]?)=(.*)", re.DOTALL)
_OPERATIONS: Final = {"": ConfigOp.SET, "+": ConfigOp.APPEND, "-": ConfigOp.SUBTRACT}


def parse_entity(word: str) -> Resource:
    """The owner that `KIND/NAME` names. Raises click.UsageError."""
    kind, slash, name = word.partition("/")
    # Kafka's tools name entity types in the plural.
    single = kind.lower().removesuffix("s") if kind.lower() != "client-metrics" else "client-metrics"
    single = _KAFKAS.get(single, single)
    if single in _QUOTAS:
        raise click.UsageError(f"{word!r}: {single}s have quotas, not settings: use ottla quota")
    if not slash or not name or single not in _KINDS:
        raise click.UsageError(
            f"{word!r} is not of the form KIND/NAME: KIND is {', '.join(_KINDS)}, as in topic/orders, broker/1, "
            "broker/default"
        )
    if single in ("broker", "logger"):
        if single == "broker" and name == DEFAULT:
            return Resource(ResourceType.BROKER, "")
        if not name.isascii() or not name.isdecimal() or len(name) > 10:
            raise click.UsageError(f"{word!r}: a broker is named by its id, as in {single}/1")
        # `01` and `1` are one broker: brokers compare the text.
        name = str(int(name))
    return Resource(_KINDS[single], name)


def entity_text(resource: Resource) -> str:
    """The word that names an owner."""
    kind = next(name for name, kind in _KINDS.items() if kind is resource.kind)
    return f"{kind}/{resource.name or DEFAULT}"


def parse_changes(words: Sequence[str]) -> list[ConfigChange]:
    """Changes from `KEY=VALUE`, `KEY+=VALUE` (append to a list) and `KEY-=VALUE`. Raises click.UsageError."""
    changes: list[ConfigChange] = []
    for word in words:
        found = _CHANGE.fullmatch(word)
        if found is None or not found[1].strip():
            raise click.UsageError(f"{word!r} is not of the form KEY=VALUE, KEY+=VALUE or KEY-=VALUE")
        changes.append(ConfigChange(found[1].strip(), found[3], _OPERATIONS[found[2]]))
    refuse_repeated([change.name for change in changes])
    return changes


def refuse_repeated(keys: Sequence[str]) -> None:
    """Raise click.UsageError if a key is named twice: the order of its changes would not be certain."""
    repeated = sorted({key for key in keys if keys.count(key) > 1})
    if repeated:
        raise click.UsageError(f"{repeated[0]} is named more than once: give one change for each key")


def require_brokers(cluster: Cluster, resources: Sequence[Resource]) -> None:
    """Raise CommandFailed for a broker that the cluster does not have: a request to it would wait until the timeout."""
    named = [each.name for each in resources if each.kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)]
    wanted = [int(name) for name in named if name]
    if not wanted:
        return
    # The metadata of no topics: it names all brokers, and costs the same beside ten thousand topics.
    alive = sorted(cluster.refresh(()).nodes)
    missing = [node for node in wanted if node not in alive]
    if missing:
        raise CommandFailed(
            f"there is no broker {missing[0]} in the cluster: it has {', '.join(map(str, alive))}", exit_code=3
        )


def read_settings(cluster: Cluster, resources: Sequence[Resource]) -> dict[Resource, list[ConfigEntry]]:
    """The settings of each owner, sorted by name. Raises ClientError, CommandFailed."""
    require_brokers(cluster, resources)
    settings: dict[Resource, list[ConfigEntry]] = {}
    for resource, entries in Admin(cluster).describe_configs(resources).items():
        if isinstance(entries, ClientError):
            raise entries
        settings[resource] = entries
    return settings


def list_entities(cluster: Cluster) -> list[Resource]:
    """All owners of settings; of a broker that cannot list them, topics and brokers."""
    everyone = Resource(ResourceType.BROKER, "")
    try:
        return [everyone, *Admin(cluster).list_config_resources()]
    except UnsupportedVersionError:
        view = cluster.refresh(None)
    brokers = [Resource(ResourceType.BROKER, str(node)) for node in sorted(view.nodes)]
    return [everyone, *brokers, *(Resource(ResourceType.TOPIC, name) for name in sorted(view.topics))]


def known_keys(cluster: Cluster, resource: Resource) -> list[str]:
    """The keys that an owner may have. The default of all brokers shows only those that are set, so any broker is
    asked for the rest.
    """
    wanted = [resource]
    if resource == Resource(ResourceType.BROKER, ""):
        wanted += [Resource(ResourceType.BROKER, str(node)) for node in sorted(cluster.refresh(()).nodes)[:1]]
    found = read_settings(cluster, wanted)
    return sorted({entry.name for entries in found.values() for entry in entries})


def unknown_key_error(resource: Resource, key: str, known: Sequence[str]) -> CommandFailed:
    """The error for a key that the owner does not have, with the nearest one."""
    from difflib import get_close_matches

    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"ottla config list {entity_text(resource)} --all shows all"
    return CommandFailed(f"{entity_text(resource)} has no setting {key}: {hint}", exit_code=3)


def require_keys(resource: Resource, keys: Sequence[str], known: Sequence[str]) -> None:
    """Raise CommandFailed for the first key that is not known."""
    for key in keys:
        if key not in known:
            raise unknown_key_error(resource, key, known)


def changed_error(resource: Resource, error: ClientError | None) -> None:
    """Raise the error of a change, if there is one."""
    # The client refused it before it was sent: the fault is in the words of the command.
    if isinstance(error, UsageError):
        raise click.UsageError(f"{entity_text(resource)}: {error}") from error
    if error is not None:
        raise error
