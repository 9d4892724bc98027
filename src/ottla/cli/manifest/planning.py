"""The changes that lead from what a cluster has to what a file wants.

Zone: pure. Two states in, changes and problems out. Nothing that the file leaves out is deleted, unless its kind is
pruned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from ottla.acls import AclBinding
from ottla.cli.manifest.state import (
    SECTIONS,
    TEMPORARY_KEYS,
    Change,
    ClusterState,
    Problem,
    Settings,
    TopicState,
    UserState,
    resource_of,
)
from ottla.pipeline.definitions.definition import MAX_PIPELINES, Definition, PipelineDefinition, UnreadableDefinition

_OWN_DEFAULTS: Final = frozenset({"min.insync.replicas"})
"""Apache Kafka 4.1 sets this default of all brokers itself, for eligible leader replicas, and refuses its removal."""


class Plan(NamedTuple):
    """Changes in the order in which they are made, and why they cannot be made."""

    changes: list[Change]
    problems: list[Problem]


def plan_changes(
    present: ClusterState,
    wanted: ClusterState,
    prune: Collection[str] = (),
    *,
    live_brokers: int = 1,
    set_passwords: bool = False,
) -> Plan:
    """Compare. set_passwords: also set passwords of users that exist, because brokers do not disclose them."""
    planner = _Planner(present, wanted, frozenset(prune), live_brokers, set_passwords)
    planner.check_sections()
    # Deletions come last: a plan that ends early has added, and deleted nothing.
    changes = [
        *planner.plan_users(),
        *planner.plan_acls(),
        *planner.plan_topics(),
        *planner.plan_resources("brokers"),
        *planner.plan_resources("groups"),
        *planner.plan_quotas(),
        *planner.plan_pipelines(),
    ]
    return Plan(sorted(changes, key=_rank), planner.problems)


def _rank(change: Change) -> int:
    # Deletions of pipelines are the first of them: a pipeline must not fail because its topic is gone.
    return 0 if change.action != "delete" else 1 if change.kind == "pipeline" else 2


class _Planner:
    def __init__(
        self,
        present: ClusterState,
        wanted: ClusterState,
        prune: frozenset[str],
        live_brokers: int,
        set_passwords: bool,
    ) -> None:
        self._present = present
        self._wanted = wanted
        self._prune = prune
        self._live_brokers = live_brokers
        self._set_passwords = set_passwords
        self._definitions_topic = present.pipelines_topic.name if present.pipelines_topic else ""
        self.problems: list[Problem] = []

    def _report(self, path: str, message: str) -> None:
        self.problems.append(Problem(self._wanted.line_of(path), path, message))

    def check_sections(self) -> None:
        """Refuse sections that the cluster cannot have, and pruning by a section that the file does not have."""
        for section in SECTIONS:
            if getattr(self._wanted, section) and getattr(self._present, section) is None:
                self._report(section, "the cluster cannot list these: take the section out of the file")
            # An absent section means that the file is not about it. Pruned, it would mean that the cluster has none.
            if section in self._prune and getattr(self._wanted, section) is None:
                self._report(section, "the file has no such section, so --prune would delete all: write an empty one")

    # -- topics and settings -------------------------------------------------------------------------------------------

    def plan_topics(self) -> Iterator[Change]:
        """New topics, partitions, settings, replicas; and topics to delete."""
        present = self._present.topics or {}
        for name, wanted in (self._wanted.topics or {}).items():
            self._check_replicas(name, wanted)
            if name in present:
                yield from self._plan_topic(name, present[name], wanted)
            else:
                yield _new_topic(name, wanted)
        for name in sorted(present.keys() - (self._wanted.topics or {}).keys()) if "topics" in self._prune else ():
            # `_schemas` and the like hold the state of other programs, as the definitions of pipelines do.
            if not name.startswith("_") and name != self._definitions_topic:
                yield Change("delete", "topic", name, None, None, f"topics.{name}", name)

    def _check_replicas(self, name: str, wanted: TopicState) -> None:
        if (wanted.replication_factor or 0) > self._live_brokers:
            self._report(
                f"topics.{name}.replication_factor",
                f"{wanted.replication_factor} replicas need as many brokers, and {self._live_brokers} are alive",
            )

    def _plan_topic(self, name: str, present: TopicState, wanted: TopicState) -> Iterator[Change]:
        path, (total, factor) = f"topics.{name}", wanted[:2]
        # Kafka cannot take partitions away: their keys would go to others, and their records would be lost.
        if total is not None and total < (present.partitions or 0):
            self._report(f"{path}.partitions", f"a topic cannot lose partitions: it has {present.partitions}")
        elif total not in (None, present.partitions):
            yield Change("change", "partitions", name, present.partitions, total, f"{path}.partitions", total)
        yield from self._plan_settings("topics", name, present.settings, wanted.settings)
        if factor not in (None, present.replication_factor):
            before = present.replication_factor
            yield Change("change", "replication", name, before, factor, f"{path}.replication_factor", factor)
        # The replicas are as wanted, but an interrupted run left the throttle.
        elif factor is not None and present.throttled:
            yield Change("change", "throttle", name, "of a reassignment", "none", path)

    def plan_resources(self, section: str) -> Iterator[Change]:
        """Settings of brokers or groups."""
        present = getattr(self._present, section) or {}
        wanted = getattr(self._wanted, section)
        for name, settings in (wanted or {}).items():
            # Settings of a broker that is away would be stored, and never checked by that broker.
            if section == "brokers" and name and name not in present:
                self._report(f"brokers.{name}", "no live broker has this id")
            else:
                yield from self._plan_settings(section, name, present.get(name, {}), settings)

    def _plan_settings(self, section: str, name: str, present: Settings, wanted: Settings) -> Iterator[Change]:
        after: dict[str, str | None] = {}
        for key, value in wanted.items():
            # The file wants the default, and the cluster has nothing else.
            if value is None and key not in present:
                continue
            if key not in present or not _same_value(present[key], value):
                after[key] = value
        if "configs" in self._prune:
            surplus = present.keys() - wanted.keys() - TEMPORARY_KEYS
            after |= dict.fromkeys(sorted(surplus if name else surplus - _OWN_DEFAULTS))
        if after:
            before = {key: present.get(key) for key in after}
            place = f"{section}.{name or 'default'}"
            path = f"{place}.configs" if section == "topics" else place
            resource = resource_of(section, name)
            yield Change("change", "settings", f"of {resource}", before, after, path, (resource, after))

    # -- users, ACLs, quotas -------------------------------------------------------------------------------------------

    def plan_users(self) -> Iterator[Change]:
        """Credentials to set and to delete."""
        present = self._present.users or {}
        for name, wanted in (self._wanted.users or {}).items():
            found = present.get(name, UserState({}))
            for mechanism, iterations in wanted.mechanisms.items():
                # Brokers do not disclose passwords, so only mechanisms and iterations can be compared.
                same = found.mechanisms.get(mechanism) == iterations
                if same and not (self._set_passwords and wanted.password):
                    continue
                if wanted.password is None:
                    self._report(f"users.{name}", f"{mechanism.title} must be set: add password_env or password_file")
                action = "change" if mechanism in found.mechanisms else "create"
                item = (name, mechanism, iterations, wanted.password)
                after = f"{iterations} iterations, password of the file"
                yield Change(action, "user", f"{name} {mechanism.title}", None, after, f"users.{name}", item)
        if "users" in self._prune:
            yield from self._surplus_users(present, self._wanted.users or {})

    def _surplus_users(self, present: Mapping[str, UserState], wanted: Mapping[str, UserState]) -> Iterator[Change]:
        for name, found in present.items():
            kept = wanted[name].mechanisms if name in wanted else {}
            for mechanism in found.mechanisms:
                if mechanism not in kept:
                    shown = f"{name} {mechanism.title}"
                    yield Change("delete", "user", shown, None, None, f"users.{name}", (name, mechanism))

    def plan_acls(self) -> Iterator[Change]:
        """ACLs to create and to delete."""
        present, wanted = self._present.acls or {}, self._wanted.acls or {}
        for binding in wanted:
            if binding not in present:
                yield _acl_change("create", binding)
        for binding in present if "acls" in self._prune else ():
            if binding not in wanted:
                yield _acl_change("delete", binding)

    def plan_quotas(self) -> Iterator[Change]:
        """Quotas to set and to remove."""
        present, wanted = self._present.quotas or {}, self._wanted.quotas or {}
        for entity in dict.fromkeys([*wanted, *(present if "quotas" in self._prune else ())]):
            have, want = present.get(entity, {}), wanted.get(entity, {})
            after = {key: value for key, value in want.items() if have.get(key) != value}
            if "quotas" in self._prune:
                after |= dict.fromkeys(sorted(have.keys() - want.keys()))
            if after:
                # A quota whose every rate is removed is a deletion, which comes after all additions.
                action = "delete" if all(value is None for value in after.values()) else "change"
                before = {key: have.get(key) for key in after}
                yield Change(action, "quota", str(entity), before, after, "quotas", (entity, after))

    # -- pipelines -----------------------------------------------------------------------------------------------------

    def plan_pipelines(self) -> Iterator[Change]:
        """Definitions to write and to delete; before the first one their topic."""
        present, wanted = self._present.pipelines or {}, self._wanted.pipelines or {}
        surplus = sorted(present.keys() - wanted.keys()) if "pipelines" in self._prune else []
        if len(present.keys() | wanted.keys()) - len(surplus) > MAX_PIPELINES:
            self._report(
                "pipelines", f"a service runs at most {MAX_PIPELINES} pipelines: use --pipelines-topic for more"
            )
        writes = [change for name, each in wanted.items() for change in self._plan_pipeline(name, present, each)]
        topic = self._present.pipelines_topic
        # A file that describes the topic, or has described it already, creates it among its topics.
        named = topic is not None and topic.name in (self._wanted.topics or {})
        if writes and topic is not None and self._present.lacks_pipelines_topic and not named:
            yield _new_topic(topic.name, TopicState(topic.partitions, None, {"cleanup.policy": "compact"}))
        yield from writes
        for name in surplus:
            if not self._is_newer(name, present[name]):
                yield Change("delete", "pipeline", name, None, None, f"pipelines.{name}", (name, None))

    def _plan_pipeline(self, name: str, present: Mapping[str, Definition], wanted: Definition) -> Iterator[Change]:
        assert isinstance(wanted, PipelineDefinition), "files have definitions"
        found = present.get(name)
        if found == wanted or (found is not None and self._is_newer(name, found)):
            return
        before = found._asdict() if isinstance(found, PipelineDefinition) else {}
        after = {key: value for key, value in wanted._asdict().items() if value != before.get(key)}
        action = "create" if found is None else "change"
        shown = {key: before.get(key) for key in after} if before else None
        yield Change(action, "pipeline", name, shown, after, f"pipelines.{name}", (name, wanted))

    def _is_newer(self, name: str, found: Definition) -> bool:
        """Report a definition of a later version: what it has that this version lacks would be lost."""
        if not (isinstance(found, UnreadableDefinition) and found.is_newer):
            return False
        self._report(f"pipelines.{name}", f"the cluster's definition is not changed: {found.reason}")
        return True


def _new_topic(name: str, wanted: TopicState) -> Change:
    settings = {key: value for key, value in wanted.settings.items() if value is not None}
    numbers = {"partitions": wanted.partitions, "replication_factor": wanted.replication_factor}
    after = {key: value for key, value in numbers.items() if value is not None} | settings
    return Change("create", "topic", name, None, after, f"topics.{name}", wanted._replace(settings=settings))


def _acl_change(action: str, binding: AclBinding) -> Change:
    return Change(action, "acl", str(binding), None, None, "acls", binding)


def _same_value(present: str | None, wanted: str | None) -> bool:
    """Whether two texts are the same value: brokers may write numbers, booleans and lists in another form.

    A value of None is secret. It cannot be compared, and counts as the same.
    """
    if present is None:
        return wanted is not None
    return wanted is not None and (present == wanted or _normal_value(present) == _normal_value(wanted))


def _normal_value(text: str) -> str:
    stripped = text.strip()
    if stripped.lower() in ("true", "false"):
        return stripped.lower()
    try:
        # Longer texts are no numbers of Kafka, and `int` would take quadratic time for them.
        return str(int(stripped)) if len(stripped) < 30 else stripped
    except ValueError:
        return ",".join(part.strip() for part in stripped.split(","))
