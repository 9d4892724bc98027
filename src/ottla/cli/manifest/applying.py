"""Makes the changes of a plan, one after the other, through Kafka's public protocol.

Zone: real. `check_changes` has the brokers try what they can try without doing it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from ottla.cli.commands.cluster.reassign import clear_throttle, set_throttle
from ottla.cli.manifest.state import Change, Password, Problem, TopicState
from ottla.cli.reassign_plan import moved_partitions, plan_assignment
from ottla.cli.security.passwords import read_password
from ottla.client import (
    Admin,
    ClientError,
    Cluster,
    ConfigChange,
    ConfigOp,
    Deadline,
    DeadlineError,
    NewTopic,
    TopicView,
    first_error,
)
from ottla.client.admin import AclAdmin, QuotaAdmin, ScramAdmin, ScramDeletion, ScramUpsertion
from ottla.pipeline.definitions.definitions_topic import TOPIC, DefinitionsTopic
from ottla.types import TopicPartition

K = TypeVar("K")
_AT_ONCE: Final = 200
"""Topics or resources that are checked by one request."""
_LOOK_S: Final = 0.5
"""Between two checks of the progress of a reassignment."""


class ChangeRunner:
    """Checks and makes changes.

    throttle: bytes per second of each broker for reassignments; 0: no limit. patience_s: how long a reassignment may
    take.
    """

    def __init__(self, cluster: Cluster, throttle: int, patience_s: float, pipelines_topic: str = TOPIC) -> None:
        self._definitions = DefinitionsTopic(cluster, pipelines_topic)
        self._admin = Admin(cluster)
        self._acls = AclAdmin(cluster)
        self._users = ScramAdmin(cluster)
        self._quotas = QuotaAdmin(cluster)
        self._throttle = throttle
        self._patience_s = patience_s
        self._passwords: dict[Password, str] = {}

    # -- checking ------------------------------------------------------------------------------------------------------

    def check_changes(self, changes: Sequence[Change]) -> list[Problem]:
        """Problems that the brokers see, and passwords that cannot be read. Changes nothing."""
        return [
            *self._check_passwords(changes),
            *self._check_topics([each for each in changes if (each.action, each.kind) == ("create", "topic")]),
            *self._check_partitions([each for each in changes if each.kind == "partitions"]),
            *self._check_settings([each for each in changes if each.kind == "settings"]),
            *self._check_quotas([each for each in changes if each.kind == "quota"]),
        ]

    def _check_passwords(self, changes: Sequence[Change]) -> Iterator[Problem]:
        import click

        for change in changes:
            if change.kind != "user" or change.action == "delete":
                continue
            user, _, _, source = _item(change)
            try:
                # Read once, before the first change: a file that is missing must not stop the plan in its middle.
                if source is not None and source not in self._passwords:
                    self._passwords[source] = read_password(user, source.file or None, source.variable or None, None)
            except click.UsageError as error:
                yield Problem(0, change.path, error.message)
            except OSError as error:
                yield Problem(0, change.path, f"{source.file}: {error.strerror}")

    def _check_topics(self, changes: Sequence[Change]) -> Iterator[Problem]:
        for part in _in_parts(changes):
            new = [_new_topic(each) for each in part]
            yield from _problems(part, list(self._admin.create_topics(new, validate_only=True).values()))

    def _check_partitions(self, changes: Sequence[Change]) -> Iterator[Problem]:
        for part in _in_parts(changes):
            totals = {each.name: _item(each) for each in part}
            yield from _problems(part, list(self._admin.create_partitions(totals, validate_only=True).values()))

    def _check_settings(self, changes: Sequence[Change]) -> Iterator[Problem]:
        for part in _in_parts(changes):
            altered = {resource: _config_changes(values) for resource, values in map(_item, part)}
            yield from _problems(part, list(self._admin.alter_configs(altered, validate_only=True).values()))

    def _check_quotas(self, changes: Sequence[Change]) -> Iterator[Problem]:
        for part in _in_parts(changes):
            results = self._quotas.alter_client_quotas(dict(map(_item, part)), validate_only=True)
            yield from _problems(part, list(results.values()))

    # -- doing ---------------------------------------------------------------------------------------------------------

    def make_change(self, change: Change) -> None:
        """Make one change. Raises ClientError."""
        # A method per kind of change. A quota is deleted by setting it to nothing, so it has one method.
        verb = "delete" if change.action == "delete" and change.kind != "quota" else "set"
        error = getattr(self, f"_{verb}_{change.kind}")(change)
        if error is not None:
            raise error

    def _set_topic(self, change: Change) -> ClientError | None:
        return first_error(self._admin.create_topics([_new_topic(change)]))

    def _delete_topic(self, change: Change) -> ClientError | None:
        return first_error(self._admin.delete_topics([change.name]))

    def _set_partitions(self, change: Change) -> ClientError | None:
        return first_error(self._admin.create_partitions({change.name: _item(change)}))

    def _set_settings(self, change: Change) -> ClientError | None:
        resource, values = _item(change)
        return first_error(self._admin.alter_configs({resource: _config_changes(values)}))

    def _set_user(self, change: Change) -> ClientError | None:
        user, mechanism, iterations, source = _item(change)
        upsertion = ScramUpsertion(user, mechanism, self._passwords[source], iterations)
        return first_error(self._users.alter_user_scram_credentials([upsertion]))

    def _delete_user(self, change: Change) -> ClientError | None:
        return first_error(self._users.alter_user_scram_credentials([ScramDeletion(*_item(change))]))

    def _set_acl(self, change: Change) -> ClientError | None:
        return first_error(self._acls.create_acls([_item(change)]))

    def _delete_acl(self, change: Change) -> ClientError | None:
        from ottla.acls import AclFilter, EntryFilter, ResourceFilter

        binding = _item(change)
        selected = AclFilter(ResourceFilter(*binding.resource), EntryFilter(*binding.entry))
        (result,) = self._acls.delete_acls([selected]).values()
        return result if isinstance(result, ClientError) else first_error(result)

    def _set_quota(self, change: Change) -> ClientError | None:
        return first_error(self._quotas.alter_client_quotas(dict([_item(change)])))

    def _set_pipeline(self, change: Change) -> None:
        self._definitions.write_definition(*_item(change))

    def _delete_pipeline(self, change: Change) -> None:
        self._definitions.write_definition(*_item(change))

    # -- replicas ------------------------------------------------------------------------------------------------------

    def _set_replication(self, change: Change) -> ClientError | None:
        """Move the topic to as many brokers as wanted, wait, and remove the throttle."""
        present = self._replicas_of(change.name)
        racks = {node.node_id: node.rack for node in self._admin.describe_cluster().nodes}
        targets = moved_partitions(present, plan_assignment(present, racks, _item(change)))
        # The throttle first: a reassignment that began without it could already have filled the network.
        if self._throttle:
            set_throttle(self._admin, present, targets, self._throttle)
        error = first_error(self._admin.alter_partition_reassignments(targets)) if targets else None
        if error is not None:
            return error
        self._await_moves(change, {node for each in (present, targets) for nodes in each.values() for node in nodes})
        return None

    def _set_throttle(self, change: Change) -> None:
        """Finish what an interrupted run has begun. Raises DeadlineError."""
        self._await_moves(change)

    def _await_moves(self, change: Change, brokers: Collection[int] = ()) -> None:
        """Wait until the topic does not move, and remove its throttle, of these brokers too. Raises DeadlineError."""
        deadline = Deadline.after_ms(int(self._patience_s * 1000))
        partitions = list(self._replicas_of(change.name))
        while left := len(self._admin.list_partition_reassignments(partitions)):
            if deadline.remaining_ms() <= 0:
                raise DeadlineError(
                    f"{left} partitions of {change.name} are still being moved, with the throttle. "
                    "Apply the file again to wait for them"
                )
            time.sleep(_LOOK_S)
        # A run that was interrupted left its throttle: this one removes it, though it set none itself.
        if self._throttle or change.kind == "throttle":
            clear_throttle(self._admin, [change.name], brokers)

    def _replicas_of(self, topic: str) -> dict[TopicPartition, tuple[int, ...]]:
        view = self._admin.describe_topics([topic])[topic]
        if not isinstance(view, TopicView):
            raise view
        return {TopicPartition(topic, part.partition): part.replicas for part in view.partitions.values()}


def _item(change: Change) -> Any:
    """The payload of the step; its type depends on the kind."""
    return change.item


def _in_parts(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    for start in range(0, len(changes), _AT_ONCE):
        yield changes[start : start + _AT_ONCE]


def _problems(changes: Sequence[Change], results: Sequence[object]) -> Iterator[Problem]:
    for change, result in zip(changes, results, strict=True):
        # Without a line: the change may come from several of them; the path names the place.
        if isinstance(result, ClientError):
            yield Problem(0, change.path, str(result))


def _new_topic(change: Change) -> NewTopic:
    wanted: TopicState = _item(change)
    settings = {key: value for key, value in wanted.settings.items() if value is not None}
    return NewTopic(change.name, wanted.partitions or -1, wanted.replication_factor or -1, settings)


def _config_changes(values: Mapping[str, str | None]) -> list[ConfigChange]:
    return [
        ConfigChange(key, value, ConfigOp.SET if value is not None else ConfigOp.DELETE)
        for key, value in values.items()
    ]
