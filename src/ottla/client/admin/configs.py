"""Reading and changing configurations of topics and brokers.

Zone: real. The part of Admin that sends DescribeConfigs, IncrementalAlterConfigs and ListConfigResources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ottla.client.admin.types import ConfigChange, ConfigEntry, ConfigSource, Resource, ResourceType, setting_text
from ottla.client.cluster import ANY_NODE, CONTROLLER, Cluster
from ottla.client.errors import ClientError, MalformedReplyError, UnsupportedVersionError, refused_error
from ottla.client.retry import Deadline
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

V = TypeVar("V")


class ConfigAdmin:
    """Calls about configurations over a Cluster."""

    __slots__ = ("_cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def describe_configs(
        self,
        resources: Iterable[Resource],
        *,
        documentation: bool = False,
        deadline: Deadline | None = None,
    ) -> dict[Resource, list[ConfigEntry] | ClientError]:
        """All keys of each resource, sorted by name, with synonyms if the broker reports them."""
        deadline = deadline or self._cluster.deadline()
        results: dict[Resource, list[ConfigEntry] | ClientError] = {}
        wanted = list(dict.fromkeys(resources))
        for node, group in _by_node(wanted, ANY_NODE).items():

            def build(version: int, group: Sequence[Resource] = group) -> DescribeConfigsRequest:
                return DescribeConfigsRequest(
                    resources=[_describe_resource(resource) for resource in group],
                    include_synonyms=version >= 1,
                    include_documentation=documentation and version >= 3,
                )

            answer = self._cluster.send_request(
                ApiKey.DESCRIBE_CONFIGS, build, DescribeConfigsResponse, node=node, deadline=deadline
            )
            for found in answer.results:
                resource = _find_resource(found.resource_type, found.resource_name, group)
                error = refused_error(found.error_code, str(resource), found.error_message)
                results[resource] = error or sorted(_config_entry(config, resource.kind) for config in found.configs)
        return _in_request_order(wanted, results)

    def alter_configs(
        self,
        changes: Mapping[Resource, Sequence[ConfigChange]],
        *,
        validate_only: bool = False,
        deadline: Deadline | None = None,
    ) -> dict[Resource, ClientError | None]:
        """Change single keys (IncrementalAlterConfigs); None for each resource that was changed."""
        deadline = deadline or self._cluster.deadline()
        results: dict[Resource, ClientError | None] = {}
        for node, group in _by_node(list(changes), CONTROLLER).items():
            request = IncrementalAlterConfigsRequest(
                resources=[_alter_resource(resource, changes[resource]) for resource in group],
                validate_only=validate_only,
            )

            def build(_: int, request: IncrementalAlterConfigsRequest = request) -> IncrementalAlterConfigsRequest:
                return request

            answer = self._cluster.send_request(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, build, IncrementalAlterConfigsResponse, node=node, deadline=deadline
            )
            for found in answer.responses:
                resource = _find_resource(found.resource_type, found.resource_name, group)
                results[resource] = refused_error(found.error_code, str(resource), found.error_message)
        return _in_request_order(list(changes), results)

    def list_config_resources(
        self, kinds: Iterable[ResourceType] = (), deadline: Deadline | None = None
    ) -> list[Resource]:
        """Topics, brokers and their loggers, and the groups and client metrics that have settings (KIP-1142).

        kinds: only of these types; by default of all. Raises UnsupportedVersionError if the broker cannot list them, as
        Kafka before 4.1.
        """

        wanted = [int(kind) for kind in kinds]

        def build(version: int) -> ListConfigResourcesRequest:
            if version < 1:  # version 0 lists client metrics only
                raise UnsupportedVersionError("the broker cannot list what has settings", "Name it, as in topic/orders")
            return ListConfigResourcesRequest(resource_types=wanted)

        answer = self._cluster.send_request(
            ApiKey.LIST_CONFIG_RESOURCES,
            build,
            ListConfigResourcesResponse,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "list of configurations"),
        )
        found = [(each.resource_type, each.resource_name) for each in answer.config_resources]
        return sorted(Resource(ResourceType(kind), name) for kind, name in found if kind in _RESOURCE_TYPES)


def _by_node(resources: Sequence[Resource], otherwise: int) -> dict[int, list[Resource]]:
    """Resources by the broker to ask: a broker answers for its own configuration, `otherwise` for the rest."""
    groups: dict[int, list[Resource]] = {}
    for resource in resources:
        own = resource.kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name.isdecimal()
        groups.setdefault(int(resource.name) if own else otherwise, []).append(resource)
    return groups


def _in_request_order(wanted: Sequence[Resource], results: dict[Resource, V]) -> dict[Resource, V]:
    missing = [resource for resource in wanted if resource not in results]
    if missing:
        raise MalformedReplyError(f"the response has no result for {missing[0]}")
    return {resource: results[resource] for resource in wanted}


def _find_resource(kind: int, name: str, group: Sequence[Resource]) -> Resource:
    found = next((resource for resource in group if (resource.kind, resource.name) == (kind, name)), None)
    if found is None:
        raise MalformedReplyError(f"the response has a result for {name!r} of type {kind}, which was not requested")
    return found


def _describe_resource(resource: Resource) -> DescribeConfigsRequest.DescribeConfigsResource:
    return DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=resource.kind, resource_name=resource.name, configuration_keys=None
    )


def _alter_resource(
    resource: Resource, changes: Sequence[ConfigChange]
) -> IncrementalAlterConfigsRequest.AlterConfigsResource:
    return IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource.kind,
        resource_name=resource.name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(
                name=change.name, config_operation=change.op, value=setting_text(change.name, change.value)
            )
            for change in changes
        ],
    )


def _config_entry(config: DescribeConfigsResponse.DescribeConfigsResourceResult, kind: ResourceType) -> ConfigEntry:
    source = _config_source(config.config_source)
    if config.is_default:
        source = ConfigSource.DEFAULT_CONFIG
    elif config.config_source == _NOT_REPORTED:
        source = _SOURCES_BEFORE_1_1.get(kind, ConfigSource.UNKNOWN)
    return ConfigEntry(
        config.name,
        config.value,
        source,
        config.read_only,
        config.is_sensitive,
        tuple((synonym.name, synonym.value, _config_source(synonym.source)) for synonym in config.synonyms),
        config.documentation or "",
    )


def _config_source(number: int) -> ConfigSource:
    return ConfigSource(number) if number in _SOURCES else ConfigSource.UNKNOWN


_SOURCES = frozenset(ConfigSource)
_NOT_REPORTED = -1
_SOURCES_BEFORE_1_1 = {
    ResourceType.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ResourceType.BROKER: ConfigSource.STATIC_BROKER_CONFIG,
}
"""The source of a value that is not the default, from brokers that do not report sources: as in Kafka's client."""
_RESOURCE_TYPES = frozenset(ResourceType)
