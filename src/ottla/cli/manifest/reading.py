"""The state that a cluster has, through Kafka's public protocol.

Zone: real. Asks for what a file mentions, or for everything. A section that the cluster refuses to list is None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from ottla.acls import AclBinding
from ottla.cli.manifest.state import (
    TEMPORARY_KEYS,
    THROTTLED_REPLICAS,
    ClusterState,
    Settings,
    TopicState,
    UserState,
    is_protected,
)
from ottla.client import (
    Admin,
    Cluster,
    ConfigEntry,
    ConfigSource,
    RefusedError,
    Resource,
    ResourceType,
    TopicView,
    UnsupportedVersionError,
)
from ottla.client.admin import AclAdmin, QuotaAdmin, QuotaEntity, ScramAdmin
from ottla.errors import ErrorCode
from ottla.pipeline.definitions.definition import Definition, DefinitionTable, UnreadableDefinition
from ottla.pipeline.definitions.definitions_topic import TOPIC, DefinitionsTopic, DefinitionsTopicError
from ottla.types import TopicPartition

V = TypeVar("V")
_AT_ONCE: Final = 200
"""Resources whose settings are asked for in one request."""
_SET: Final = {
    ResourceType.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ResourceType.BROKER: ConfigSource.DYNAMIC_BROKER_CONFIG,
    ResourceType.GROUP: ConfigSource.GROUP_CONFIG,
}
"""Where a value comes from that was set for the resource itself."""
_NOT_THERE: Final = frozenset({ErrorCode.SECURITY_DISABLED, ErrorCode.UNSUPPORTED_VERSION})


class StateReader:
    """Reads the sections of a state."""

    def __init__(self, cluster: Cluster, pipelines_topic: str = TOPIC) -> None:
        """cluster: with the settings that the topic of definitions needs."""
        self._cluster = cluster
        self._definitions = DefinitionsTopic(cluster, pipelines_topic)
        self._admin = Admin(cluster)
        self.notes: list[str] = []
        """Why sections could not be read, and which values are secret."""
        self.live_brokers = 0
        self._lacks_topic = False

    def read_state(self, wanted: ClusterState | None = None, *, whole: bool = False) -> ClusterState:
        """Everything. wanted: only the sections that it has, and only settings of topics and groups that it names;
        whole: those of all.

        Raises ClientError.
        """
        self.live_brokers = len(self._cluster.refresh(()).nodes)
        asked = wanted or ClusterState({}, {}, {}, {}, {}, {}, {})
        everything = whole or wanted is None
        pipelines = None if asked.pipelines is None else self._read_pipelines()
        return ClusterState(
            None if asked.topics is None else self._read_topics(None if everything else asked.topics),
            None if asked.brokers is None else self._read_brokers(),
            None if asked.groups is None else self._read_groups(None if everything else asked.groups),
            None if asked.users is None else self._optional("users", self._read_users),
            None if asked.acls is None else self._optional("acls", self._read_acls),
            None if asked.quotas is None else self._optional("quotas", self._read_quotas),
            pipelines,
            pipelines_topic=self._definitions.new_topic(),
            lacks_pipelines_topic=self._lacks_topic,
        )

    def _optional(self, section: str, read: Callable[[], V]) -> V | None:
        try:
            return read()
        except UnsupportedVersionError as error:
            self.notes.append(f"{section} cannot be listed: {error}")
        except RefusedError as error:
            if error.code not in _NOT_THERE:
                raise
            self.notes.append(f"{section} cannot be listed: {error}")
        return None

    # -- topics and settings -------------------------------------------------------------------------------------------

    def _read_topics(self, named: Collection[str] | None) -> dict[str, TopicState]:
        views = {each.name: each for each in self._admin.list_topics() if not is_protected(each.name)}
        asked = [name for name in views if named is None or name in named]
        settings = self._read_settings(Resource(ResourceType.TOPIC, name) for name in asked)
        factors = self._replicas_of(views.values())
        return {
            name: _topic_state(view, factors[name], settings.get(Resource(ResourceType.TOPIC, name), {}))
            for name, view in views.items()
        }

    def _replicas_of(self, views: Iterable[TopicView]) -> dict[str, set[int]]:
        """The replication factors that the partitions of each topic have, or get by a reassignment."""
        moving = self._admin.list_partition_reassignments()
        found: dict[str, set[int]] = {}
        for view in views:
            counts = found.setdefault(view.name, set())
            for number, part in view.partitions.items():
                move = moving.get(TopicPartition(view.name, number))
                counts.add(len(part.replicas) - (len(move.removing) if move else 0))
        return found

    def _read_brokers(self) -> dict[str, Settings]:
        names = ["", *map(str, sorted(self._cluster.view.nodes))]
        found = self._read_settings(Resource(ResourceType.BROKER, name) for name in names)
        return {resource.name: values for resource, values in found.items()}

    def _read_groups(self, named: Collection[str] | None) -> dict[str, Settings] | None:
        if named is None:
            listed = self._optional("groups", lambda: self._admin.list_config_resources([ResourceType.GROUP]))
            if listed is None:
                return None
            resources = listed
        else:
            resources = [Resource(ResourceType.GROUP, name) for name in named]
        read = self._optional("groups", lambda: self._read_settings(resources))
        return None if read is None else {resource.name: values for resource, values in read.items()}

    def _read_settings(self, resources: Iterable[Resource]) -> dict[Resource, Settings]:
        """The values that were set for each resource itself. Raises ClientError."""
        found: dict[Resource, Settings] = {}
        for part in _in_parts(list(resources)):
            for resource, entries in self._admin.describe_configs(part).items():
                if not isinstance(entries, list):
                    raise entries
                found[resource] = self._own_settings(resource, entries)
        return found

    def _own_settings(self, resource: Resource, entries: Sequence[ConfigEntry]) -> dict[str, str | None]:
        default = resource == Resource(ResourceType.BROKER, "")
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG if default else _SET[resource.kind]
        # Only what was set for this resource: what it inherits is set elsewhere, or is a default.
        own = {each.name: each.value for each in entries if each.source is source}
        self.notes += [f"{key} of {resource} is secret" for key, value in own.items() if value is None]
        return own

    # -- users, ACLs, quotas -------------------------------------------------------------------------------------------

    def _read_users(self) -> dict[str, UserState]:
        found: dict[str, UserState] = {}
        for name, infos in ScramAdmin(self._cluster).describe_user_scram_credentials().items():
            if not isinstance(infos, list):
                raise infos
            found[name] = UserState({each.mechanism: each.iterations for each in infos})
        return found

    def _read_acls(self) -> dict[AclBinding, None]:
        return dict.fromkeys(AclAdmin(self._cluster).describe_acls())

    def _read_quotas(self) -> dict[QuotaEntity, Mapping[str, float | None]]:
        return {entity: dict(values) for entity, values in QuotaAdmin(self._cluster).describe_client_quotas().items()}

    # -- pipelines -----------------------------------------------------------------------------------------------------

    def _read_pipelines(self) -> dict[str, Definition] | None:
        try:
            self._lacks_topic = not self._definitions.check_topic()
            table = DefinitionTable() if self._lacks_topic else self._definitions.read_definitions()
        except (DefinitionsTopicError, RefusedError) as error:
            # A user who may not read this topic can still export the rest.
            if isinstance(error, RefusedError) and error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            self.notes.append(f"pipelines cannot be listed: {error}")
            return None
        for name, each in table.definitions.items():
            if isinstance(each, UnreadableDefinition):
                self.notes.append(f"pipeline {name}: {each.reason}")
        if table.ignored:
            self.notes.append(f"{table.ignored} records of {self._definitions.name} whose keys name no pipeline")
        return table.definitions


def _in_parts(resources: Sequence[Resource]) -> Iterator[Sequence[Resource]]:
    for start in range(0, len(resources), _AT_ONCE):
        yield resources[start : start + _AT_ONCE]


def _topic_state(view: TopicView, factors: Collection[int], settings: Settings) -> TopicState:
    """A topic whose partitions differ in their numbers of replicas has none of them as its factor."""
    throttled = any(settings.get(key) not in (None, "", "*") for key in THROTTLED_REPLICAS)
    own = {key: value for key, value in settings.items() if key not in TEMPORARY_KEYS}
    return TopicState(len(view.partitions), next(iter(factors)) if len(factors) == 1 else 0, own, throttled)
