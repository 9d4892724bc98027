"""Settings of entities as kafka-configs shows and changes them.

Zone: real. Topics, brokers, loggers, groups and client metrics have settings; users, clients and addresses have quotas,
and users passwords.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ottla.client.admin.admin import Admin
from ottla.client.admin.quotas import AnyName, QuotaAdmin, QuotaEntity, QuotaFilter
from ottla.client.admin.scram import ScramAdmin, ScramDeletion, ScramMechanism, ScramUpsertion
from ottla.client.admin.types import ConfigChange, ConfigEntry, ConfigOp, ConfigSource, Resource, ResourceType
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError, values_of
from ottla.errors import ErrorCode
from ottla.kafka_tools.options import ToolError

_RESOURCES: Final = {
    "topics": ResourceType.TOPIC,
    "brokers": ResourceType.BROKER,
    "broker-loggers": ResourceType.BROKER_LOGGER,
    "client-metrics": ResourceType.CLIENT_METRICS,
    "groups": ResourceType.GROUP,
}
_SOURCES: Final = {
    ResourceType.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ResourceType.CLIENT_METRICS: ConfigSource.CLIENT_METRICS_CONFIG,
    ResourceType.GROUP: ConfigSource.GROUP_CONFIG,
}
_QUOTA_PARTS: Final = {"users": "user", "clients": "client_id", "ips": "ip"}
_QUOTA_TITLES: Final = {"user": "user-principal", "client_id": "client-id", "ip": "ip"}
_CLIENT_QUOTAS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_IP_QUOTAS: Final = ("connection_creation_rate",)
_SCRAM: Final = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
_AT_ONCE: Final = 200


class Entity(NamedTuple):
    """A type and a name: "" is the default, None no name."""

    kind: str
    name: str | None

    @property
    def singular(self) -> str:
        """The type without its plural s."""
        return self.kind.removesuffix("s")


def describe_entity(cluster: Cluster, entities: Sequence[Entity], *, every: bool, as_kafka_1: bool = False) -> None:
    """Print the settings, or the quotas and passwords.

    every: also settings that were not changed. as_kafka_1: a topic's settings in the one line of Kafka 1.0. Raises
    ClientError.
    """
    entity = entities[0]
    if as_kafka_1 and entity.kind == "topics":
        _describe_in_a_line(cluster, entity)
    elif entity.kind in _RESOURCES:
        _describe_resources(cluster, entity, every=every)
    else:
        _describe_quotas(cluster, entities)
        if [each.kind for each in entities] == ["users"]:
            _describe_passwords(cluster, entity)


# -- settings ----------------------------------------------------------------------------------------------------------


def _describe_resources(cluster: Cluster, entity: Entity, *, every: bool) -> None:
    kind = _RESOURCES[entity.kind]
    admin = Admin(cluster)
    if entity.name and _is_unknown(admin, kind, entity.name):
        print(f"The {entity.singular} '{entity.name}' doesn't exist and doesn't have dynamic config.")
        return
    names = [entity.name] if entity.name is not None else _all_names(admin, cluster, kind)
    for at in range(0, len(names), _AT_ONCE):
        for name in names[at : at + _AT_ONCE]:
            _print_title(entity, name, every=every)
            found = admin.describe_configs([Resource(kind, name)])[Resource(kind, name)]
            if isinstance(found, ClientError):
                raise found
            for row in found:
                if every or _is_changed(row, kind, name):
                    print(_entry_line(row))


def _describe_in_a_line(cluster: Cluster, entity: Entity) -> None:
    admin = Admin(cluster)
    kind = ResourceType.TOPIC
    names = [entity.name] if entity.name is not None else _all_names(admin, cluster, kind)
    for at in range(0, len(names), _AT_ONCE):
        found = values_of(admin.describe_configs([Resource(kind, name) for name in names[at : at + _AT_ONCE]]))
        for resource, rows in found.items():
            changed = [f"{row.name}={row.value}" for row in rows if _is_changed(row, kind, resource.name)]
            # Kafka 1.0 shows a topic without settings only where it is named.
            if changed or entity.name is not None:
                print(f"Configs for topic '{resource.name}' are {','.join(changed)}")


def _is_unknown(admin: Admin, kind: ResourceType, name: str) -> bool:
    if kind is ResourceType.TOPIC:
        found = admin.describe_topics([name])[name]
        return isinstance(found, RefusedError) and found.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if kind in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        return all(each.name != name for each in admin.list_config_resources([kind]))
    return False


def _all_names(admin: Admin, cluster: Cluster, kind: ResourceType) -> list[str]:
    if kind is ResourceType.TOPIC:
        return [topic.name for topic in admin.list_topics(internal=True)]
    if kind in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        return [each.name for each in admin.list_config_resources([kind])]
    nodes = [str(node) for node in sorted(cluster.refresh(()).nodes)]
    return [*nodes, ""] if kind is ResourceType.BROKER else nodes


def _print_title(entity: Entity, name: str, *, every: bool) -> None:
    if name:
        print(f"{'All' if every else 'Dynamic'} configs for {entity.singular} {name} are:")
    else:
        print(f"Default configs for {entity.kind} in the cluster are:")


def _is_changed(row: ConfigEntry, kind: ResourceType, name: str) -> bool:
    if kind is ResourceType.BROKER_LOGGER:
        return True
    if kind is ResourceType.BROKER:
        wanted = ConfigSource.DYNAMIC_BROKER_CONFIG if name else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return row.source is wanted
    return row.source is _SOURCES[kind]


def _entry_line(row: ConfigEntry) -> str:
    synonyms = ", ".join(f"{source.name}:{name}={_shown(text)}" for name, text, source in row.synonyms)
    sensitive = "true" if row.sensitive else "false"
    return f"  {row.name}={_shown(row.value)} sensitive={sensitive} synonyms={{{synonyms}}}"


def _shown(text: str | None) -> str:
    return "null" if text is None else text


# -- quotas and passwords ----------------------------------------------------------------------------------------------


def _describe_quotas(cluster: Cluster, entities: Sequence[Entity]) -> None:
    parts: dict[str, str | AnyName | None] = {}
    for entity in entities:
        name = entity.name
        parts[_QUOTA_PARTS[entity.kind]] = AnyName.ANY if name is None else None if name == "" else name
    found = QuotaAdmin(cluster).describe_client_quotas(QuotaFilter(**parts, strict=True))
    for owner, quotas in found.items():
        named = ", ".join(
            f"the default {_QUOTA_TITLES[part]}" if name is None else f"{_QUOTA_TITLES[part]} '{name}'"
            for part, name in owner._asdict().items()
            if name != ""
        )
        values = ", ".join(f"{key}={number_text(number)}" for key, number in sorted(quotas.items()))
        print(f"Quota configs for {named} are {values}")


def number_text(number: float) -> str:
    """A number as Java prints a double: 1024.0, 1.048576E7 from ten million on."""
    if 1e-3 <= abs(number) < 1e7 or not number:
        return repr(float(number))
    mantissa, _, exponent = f"{number:.17e}".partition("e")
    shortest = repr(float(mantissa))
    for digits in range(1, 17):
        text = f"{number:.{digits}e}"
        if float(text) == number:
            shortest = text.partition("e")[0]
            break
    return f"{shortest}E{int(exponent)}"


def _describe_passwords(cluster: Cluster, entity: Entity) -> None:
    if entity.name == "":
        return
    found = ScramAdmin(cluster).describe_user_scram_credentials([entity.name] if entity.name else None)
    for user, infos in found.items():
        if isinstance(infos, RefusedError) and infos.code is ErrorCode.RESOURCE_NOT_FOUND:
            continue
        if isinstance(infos, ClientError):
            raise infos
        listed = ", ".join(f"{info.mechanism.title}=iterations={info.iterations}" for info in infos)
        print(f"SCRAM credential configs for user-principal '{user}' are {listed}")


# -- changes -----------------------------------------------------------------------------------------------------------


def alter_entity(
    cluster: Cluster,
    entities: Sequence[Entity],
    added: Mapping[str, str],
    deleted: Sequence[str],
    *,
    as_kafka_1: bool = False,
) -> None:
    """Change an entity, and print that it is done.

    as_kafka_1: in the words of Kafka 1.0 for a topic. Raises ClientError, ToolError.
    """
    entity = entities[0]
    if entity.kind in _RESOURCES:
        _alter_resource(cluster, entity, added, deleted)
    elif entity.kind == "users" and len(entities) == 1 and any(key in _SCRAM for key in (*added, *deleted)):
        _alter_passwords(cluster, entity, added, deleted)
    else:
        _alter_quotas(cluster, entities, added, deleted)
    if as_kafka_1 and entity.kind == "topics":
        print(f"Completed Updating config for entity: topic '{entity.name}'.")
    elif entity.name:
        print(f"Completed updating config for {entity.singular} {entity.name}.")
    else:
        print(f"Completed updating default config for {entity.kind} in the cluster.")


def _alter_resource(cluster: Cluster, entity: Entity, added: Mapping[str, str], deleted: Sequence[str]) -> None:
    resource, admin = Resource(_RESOURCES[entity.kind], entity.name or ""), Admin(cluster)
    if resource.kind is ResourceType.BROKER_LOGGER:
        known = {row.name for row in values_of(admin.describe_configs([resource]))[resource]}
        if unknown := [name for name in (*deleted, *added) if name not in known]:
            raise ToolError(f"Invalid broker logger(s): {','.join(unknown)}")
    changes = [ConfigChange(key, text) for key, text in added.items()]
    changes += [ConfigChange(key, None, ConfigOp.DELETE) for key in deleted]
    if (error := admin.alter_configs({resource: changes})[resource]) is not None:
        raise error


def _alter_quotas(
    cluster: Cluster, entities: Sequence[Entity], added: Mapping[str, str], deleted: Sequence[str]
) -> None:
    kind = entities[0].kind
    known = _IP_QUOTAS if kind == "ips" else _CLIENT_QUOTAS
    unknown = [key for key in (*added, *deleted) if key not in known]
    if unknown:
        what, names = "quota", f"Set({', '.join(unknown)})"
        if kind == "ips":
            what, names = "connection quota", ",".join(unknown)
        elif [each.kind for each in entities] == ["users"]:
            what = "quota and SCRAM credential"
        raise ToolError(
            f"Only {what} configs can be added for '{kind}' using --bootstrap-server. Unexpected config names: {names}"
        )
    parts = {_QUOTA_PARTS[each.kind]: each.name or None for each in entities}
    changes: dict[str, float | None] = {key: _parse_number(key, text) for key, text in added.items()}
    changes |= dict.fromkeys(deleted)
    owner = QuotaEntity(**parts)
    if (error := QuotaAdmin(cluster).alter_client_quotas({owner: changes})[owner]) is not None:
        raise error


def _parse_number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ToolError(f"Cannot parse quota configuration value for {key}: {text}") from None


def _alter_passwords(cluster: Cluster, entity: Entity, added: Mapping[str, str], deleted: Sequence[str]) -> None:
    if not entity.name:
        raise ToolError("The use of --entity-default or --user-defaults is not allowed with User SCRAM Credentials")
    if wrong := [key for key in (*added, *deleted) if key not in _SCRAM]:
        raise ToolError(
            "Cannot alter both quota and SCRAM credential configs simultaneously for 'users' using "
            f"--bootstrap-server: {', '.join(wrong)}"
        )
    changes: list[ScramUpsertion | ScramDeletion] = [_upsertion(entity.name, *row) for row in added.items()]
    changes += [ScramDeletion(entity.name, _SCRAM[key]) for key in deleted]
    for error in ScramAdmin(cluster).alter_user_scram_credentials(changes).values():
        if error is not None:
            raise error


def _upsertion(user: str, mechanism: str, text: str) -> ScramUpsertion:
    """The password of `iterations=8192,password=secret`. Raises ToolError."""
    from ottla.kafka_tools.tools.cluster.configs import parse_config_list

    given = parse_config_list(text)
    password = given.get("password", "")
    iterations = given.get("iterations", "4096")
    if not password or not iterations.isdecimal():
        raise ToolError(
            "Invalid credential property, the form is [iterations=8192,password=…]: a password is needed, and "
            "iterations is a number"
        )
    return ScramUpsertion(user, _SCRAM[mechanism], password, int(iterations))
