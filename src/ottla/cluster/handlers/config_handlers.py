"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings of topics and brokers.

Zone: deterministic. `configs` decides about changes, `ConfigWriter` carries them out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, NamedTuple, TypeVar

from ottla.acls import CLUSTER_NAME, Operation, ResourceType
from ottla.cluster.cluster import Cluster
from ottla.cluster.config_writer import ConfigWriter
from ottla.cluster.configs import (
    ConfigSource,
    ConfigUpdate,
    DescribedConfig,
    Resource,
    alter_config,
    describe_broker,
    describe_shared,
    describe_topic,
    replace_config,
)
from ottla.cluster.entities.log_levels import alter_loggers, describe_loggers
from ottla.cluster.entities.resource_configs import ResourceConfigs, resource_path
from ottla.cluster.topics import check_name
from ottla.config.broker import BROKER_ROWS
from ottla.config.rows import render_value
from ottla.config.topic import TOPIC_ROWS
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.requests import Context, InPieces, Parts, handles
from ottla.security.audit_log import AuditLog
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_PIECE: Final = 500
"""Resources in one piece of a list."""

_Result = DescribeConfigsResponse.DescribeConfigsResult
_Entry = DescribeConfigsResponse.DescribeConfigsResourceResult


def _resource_key(
    resource: AlterConfigsRequest.AlterConfigsResource | IncrementalAlterConfigsRequest.AlterConfigsResource,
) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _altered_names(
    resource: AlterConfigsRequest.AlterConfigsResource | IncrementalAlterConfigsRequest.AlterConfigsResource,
) -> tuple[tuple[int, str]]:
    return (_resource_key(resource),)


def _by_resource(resource: DescribeConfigsRequest.DescribeConfigsResource) -> object:
    keys = resource.configuration_keys
    return resource.resource_type, resource.resource_name, None if keys is None else tuple(keys)


class _Alteration(NamedTuple):
    """One resource of an alteration."""

    resource_type: int
    name: str
    changes: list[ConfigUpdate]


class ConfigHandlers:
    """Handles requests that read and change settings."""

    def __init__(
        self, cluster: Cluster, alterations: ConfigWriter, resources: ResourceConfigs, audit: AuditLog
    ) -> None:
        """`resources`: the settings of groups and client metrics."""
        self._cluster = cluster
        self._alterations = alterations
        self._resources = resources
        self._audit = audit

    # -- reading -----------------------------------------------------------------------------------------------

    @handles(
        ApiKey.DESCRIBE_CONFIGS,
        0,
        4,
        resource="Topic",
        operation="DescribeConfigs",
        also=(("Cluster", "DescribeConfigs"),),
        parts=Parts(cost_us=1_000, request=(("resources",),), response=(("results",),), once=_by_resource),
    )
    def describe_configs(self, context: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """Return settings with their sources, their synonyms and their documentation."""
        results = [self._describe_config(context, request, one) for one in request.resources]
        return DescribeConfigsResponse(results=results)

    def _describe_config(
        self,
        context: Context,
        request: DescribeConfigsRequest,
        resource: DescribeConfigsRequest.DescribeConfigsResource,
    ) -> _Result:
        result = _Result(resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None)
        try:
            _check_rights(context, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
            described = self._describe_resource(
                resource.resource_type, resource.resource_name, resource.configuration_keys or None
            )
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            return result
        result.configs = [_config_entry(one, request) for one in described]
        return result

    def _describe_resource(self, resource_type: int, name: str, wanted: Sequence[str] | None) -> list[DescribedConfig]:
        """The settings of a resource. Raises ApiError if it does not exist."""
        cluster = self._cluster
        if resource_type == Resource.TOPIC:
            topic = cluster.image.topics.get(name)
            if topic is None:
                check_name(name)
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            return describe_topic(topic.overrides, topic.config, cluster.layers, wanted)
        if resource_type in (Resource.GROUP, Resource.CLIENT_METRICS):
            return self._resources.describe_resource(Resource(resource_type), name, wanted)
        if resource_type == Resource.BROKER_LOGGER:
            self._check_logger_broker(name)
            return describe_loggers(wanted)
        if resource_type != Resource.BROKER:
            raise _no_resource(resource_type)
        if self._is_own_broker(name):
            return describe_broker(cluster.config, cluster.layers, wanted)
        return describe_shared(cluster.layers.shared, wanted)

    def _is_own_broker(self, name: str) -> bool:
        """Whether a broker resource is this broker; False: all brokers (an empty name). Raises ApiError."""
        if not name:
            return False
        if name != str(self._cluster.node_id):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {self._cluster.node_id}, not {name[:20]!r}; ask that one, or give no name for all",
            )
        return True

    def _check_logger_broker(self, name: str) -> None:
        if not self._is_own_broker(name):
            raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")

    @handles(
        ApiKey.LIST_CONFIG_RESOURCES,
        0,
        1,
        resource="Cluster",
        operation="DescribeConfigs",
        undivided="its array is a filter of a few types",
    )
    def list_config_resources(
        self, context: Context, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse | InPieces:
        """List topics, brokers with their loggers, and the groups and client metrics that have settings."""
        known = (Resource.TOPIC, Resource.BROKER, Resource.BROKER_LOGGER, Resource.CLIENT_METRICS, Resource.GROUP)
        wanted = request.resource_types or list(known)
        if context.api_version == 0:
            wanted = [Resource.CLIENT_METRICS]
        if any(one not in known for one in wanted):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        names = []
        if Resource.TOPIC in wanted:
            names += [(name, Resource.TOPIC) for name in sorted(self._cluster.image.topics)]
        for kind in (Resource.BROKER, Resource.BROKER_LOGGER):
            if kind in wanted:
                names += [(str(node_id), kind) for node_id in sorted(self._cluster.image.brokers)]
        for kind in (Resource.CLIENT_METRICS, Resource.GROUP):
            if kind in wanted:
                names += [(name, kind) for name in self._resources.names_of(kind)]
        pieces = _resource_pieces(names)
        return next(pieces) if len(names) <= _PIECE else InPieces(("config_resources",), pieces)

    # -- writing -----------------------------------------------------------------------------------------------

    @handles(
        ApiKey.ALTER_CONFIGS,
        0,
        2,
        resource="Topic",
        operation="AlterConfigs",
        also=(("Cluster", "AlterConfigs"),),
        parts=Parts(cost_us=100, request=(("resources",),), response=(("responses",),), names=_altered_names),
    )
    def alter_configs(self, context: Context, request: AlterConfigsRequest) -> None:
        """Replace all settings of resources by those in the request."""
        alterations = [
            _Alteration(*_resource_key(one), [ConfigUpdate(config.name, 0, config.value) for config in one.configs])
            for one in request.resources
        ]
        repeated = context.repeated_names(map(_resource_key, request.resources))

        def reply(outcomes: list[ApiError | None]) -> None:
            answers = _resource_responses(AlterConfigsResponse.AlterConfigsResourceResponse, alterations, outcomes)
            context.send_reply(AlterConfigsResponse(responses=answers))

        self._alter_all(context, alterations, repeated, False, request.validate_only, context.wrap_step(reply))

    @handles(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        0,
        1,
        resource="Topic",
        operation="AlterConfigs",
        also=(("Cluster", "AlterConfigs"),),
        parts=Parts(cost_us=100, request=(("resources",),), response=(("responses",),), names=_altered_names),
    )
    def incremental_alter_configs(self, context: Context, request: IncrementalAlterConfigsRequest) -> None:
        """Change single settings of resources."""
        alterations = [
            _Alteration(
                *_resource_key(one),
                [ConfigUpdate(config.name, config.config_operation, config.value) for config in one.configs],
            )
            for one in request.resources
        ]
        repeated = context.repeated_names(map(_resource_key, request.resources))

        def reply(outcomes: list[ApiError | None]) -> None:
            answers = _resource_responses(
                IncrementalAlterConfigsResponse.AlterConfigsResourceResponse, alterations, outcomes
            )
            context.send_reply(IncrementalAlterConfigsResponse(responses=answers))

        self._alter_all(context, alterations, repeated, True, request.validate_only, context.wrap_step(reply))

    def _alter_all(
        self,
        context: Context,
        alterations: Sequence[_Alteration],
        repeated: AbstractSet[int],
        incremental: bool,
        validate_only: bool,
        reply: Callable[[list[ApiError | None]], None],
    ) -> None:
        """Answer for each resource; refuses those whose names' hashes are in `repeated`."""
        gather: FanIn[ApiError | None] = FanIn(reply)
        for one in alterations:
            slot = gather.new_slot()
            try:
                # Two alterations of one resource would depend on their order, so neither is made, as in Kafka.
                if hash((one.resource_type, one.name)) in repeated:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "the request names this resource more than once")
                _check_rights(context, Operation.ALTER_CONFIGS, one.resource_type, one.name)
                done = slot if validate_only else partial(self._on_altered, context, one, incremental, slot)
                self._alter_in_turn(one, incremental, validate_only, done)
            except ApiError as error:
                slot(error.as_value())
        gather.close_slots()

    def _on_altered(
        self,
        context: Context,
        one: _Alteration,
        incremental: bool,
        done: Callable[[ApiError | None], None],
        outcome: ApiError | None,
    ) -> None:
        if outcome is None:
            kind = _named_type(one.resource_type)
            keys = ",".join(change.name for change in one.changes)  # values may be secret
            verb = "alter" if incremental else "replace"
            self._audit.log_change(context.peer, "config", resource=kind, name=one.name, operation=verb, keys=keys)
        done(outcome)

    def _alter_in_turn(
        self, one: _Alteration, incremental: bool, validate_only: bool, done: Callable[[ApiError | None], None]
    ) -> None:
        """Run alterations of one resource one after another, each on the result of the last. Raises ApiError."""

        def begin(release: Callable[[], None]) -> None:
            def finish(outcome: ApiError | None) -> None:
                release()
                done(outcome)

            try:
                self._begin_alteration(one, incremental, validate_only, finish)
            except ApiError as error:
                finish(error.as_value())

        self._alterations.one_by_one(f"{one.resource_type} {one.name}", begin)

    def _begin_alteration(
        self, one: _Alteration, incremental: bool, validate_only: bool, done: Callable[[ApiError | None], None]
    ) -> None:
        """Begin an alteration. Raises ApiError only if `done` will not be called."""
        changes = one.changes
        if one.resource_type == Resource.TOPIC:
            if one.name not in self._cluster.image.topics:
                check_name(one.name)  # a valid name that does not exist fails in the alteration

            def topic_after(present: Mapping[str, str]) -> dict[str, str]:
                effective = self._topic_values(one.name)
                return alter_config(present, TOPIC_ROWS, effective, changes) if incremental else replace_config(changes)

            self._alterations.alter_topic(one.name, topic_after, validate_only, done)
        elif one.resource_type == Resource.BROKER:

            def broker_after(present: Mapping[str, str]) -> dict[str, str]:
                effective = self._broker_values()
                return (
                    alter_config(present, BROKER_ROWS, effective, changes) if incremental else replace_config(changes)
                )

            self._alterations.alter_broker(self._is_own_broker(one.name), broker_after, validate_only, done)
        elif one.resource_type in (Resource.GROUP, Resource.CLIENT_METRICS):
            self._alter_resource(Resource(one.resource_type), one, incremental, validate_only, done)
        elif one.resource_type == Resource.BROKER_LOGGER and incremental:
            self._check_logger_broker(one.name)
            alter_loggers(changes, validate_only)
            done(None)
        else:
            raise _no_resource(one.resource_type)

    def _alter_resource(
        self,
        resource: Resource,
        one: _Alteration,
        incremental: bool,
        validate_only: bool,
        done: Callable[[ApiError | None], None],
    ) -> None:
        change = self._resources.change_of(resource, one.name, one.changes, incremental)
        if validate_only:
            change(self._resources.present_config(resource, one.name))
            done(None)
        else:
            self._alterations.alter_entity(resource_path(resource, one.name), change, done)

    def _topic_values(self, name: str) -> dict[str, str | None]:
        config = self._cluster.topic_config(name)
        return {key: render_value(getattr(config, row.attribute)) for key, row in TOPIC_ROWS.items()}

    def _broker_values(self) -> dict[str, str | None]:
        return {key: render_value(self._cluster.config.value_of(row)) for key, row in BROKER_ROWS.items()}


def _resource_pieces(names: Sequence[tuple[str, Resource]]) -> Generator[ListConfigResourcesResponse, None, None]:
    """The response in pieces of a few hundred resources; at least one piece."""
    for begin in range(0, max(1, len(names)), _PIECE):
        yield ListConfigResourcesResponse(
            config_resources=[
                ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
                for name, kind in names[begin : begin + _PIECE]
            ]
        )


_CHECKED_TYPES: Final[dict[int, ResourceType]] = {
    Resource.TOPIC: ResourceType.TOPIC,
    Resource.GROUP: ResourceType.GROUP,
    Resource.BROKER: ResourceType.CLUSTER,
    Resource.BROKER_LOGGER: ResourceType.CLUSTER,
    Resource.CLIENT_METRICS: ResourceType.CLUSTER,
}
"""The type of the resource at which a permission is needed."""


def _check_rights(context: Context, operation: Operation, resource_type: int, name: str) -> None:
    """Raise ApiError if the client may not do this with the settings of a resource. Unknown types fail later."""
    kind = _CHECKED_TYPES.get(resource_type)
    if kind is not None:
        context.check_allowed(operation, kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else name)


def _named_type(resource_type: int) -> str:
    return Resource(resource_type).name.lower()


def _no_resource(resource_type: int) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, f"resources of type {resource_type} have no settings here")


_Answer = TypeVar(
    "_Answer",
    AlterConfigsResponse.AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
)


def _resource_responses(
    kind: type[_Answer], alterations: Sequence[_Alteration], outcomes: Sequence[ApiError | None]
) -> list[_Answer]:
    return [
        kind(
            error_code=_error_code(outcome),
            error_message=_error_message(outcome),
            resource_type=one.resource_type,
            resource_name=one.name,
        )
        for one, outcome in zip(alterations, outcomes, strict=True)
    ]


def _error_code(outcome: ApiError | None) -> ErrorCode:
    return ErrorCode.NONE if outcome is None else outcome.code


def _error_message(outcome: ApiError | None) -> str | None:
    return None if outcome is None else outcome.message


def _config_entry(one: DescribedConfig, request: DescribeConfigsRequest) -> _Entry:
    synonyms = [
        DescribeConfigsResponse.DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
        for synonym in one.synonyms
    ]
    return _Entry(
        name=one.row.name,
        value=one.value,
        read_only=one.read_only,
        is_default=one.source is ConfigSource.DEFAULT_CONFIG,
        config_source=one.source,
        is_sensitive=one.row.sensitive,
        synonyms=synonyms if request.include_synonyms else [],
        config_type=one.row.type,
        documentation=one.row.doc if request.include_documentation else None,
    )
