"""The state that a file wants, from its tree; every error with its line and path.

Zone: pure. Asks no cluster: `planning` compares the state with one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ottla.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclBinding,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    fault_of_binding,
)
from ottla.cli.manifest.state import (
    SECTIONS,
    TEMPORARY_KEYS,
    ClusterState,
    Password,
    Problem,
    Settings,
    TopicState,
    UserState,
    is_protected,
)
from ottla.cli.manifest.tree import Node
from ottla.client.admin.quotas import QuotaEntity
from ottla.client.admin.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism
from ottla.pipeline.definitions.definition import PipelineDefinition, definition_of, fault_of_field
from ottla.pipeline.errors import fault_of_pipeline_name

VERSION: Final = 1
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_INT32_MAX: Final = 2**31 - 1
_PARTITIONS_MAX: Final = 1_000_000
_REPLICAS_MAX: Final = 32_767
_MECHANISMS: Final = {each.title: each for each in ScramMechanism if each is not ScramMechanism.UNKNOWN}
_QUOTAS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)


def parse_state(root: Node) -> tuple[ClusterState, list[Problem]]:
    """The state that the tree of a file describes, and all problems that were found."""
    parser = _Parser()
    state = parser.parse_root(root)
    state.lines = parser.lines
    return state, parser.problems


class _Parser:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.lines: dict[str, int] = {}

    def parse_root(self, root: Node) -> ClusterState:
        found = self._mapping(root, "file", ("version", *SECTIONS))
        version = found.get("version")
        # For `==`, true is 1.
        if version is None or version.value != VERSION or isinstance(version.value, bool):
            self._report(version or root, "version", f"write `version: {VERSION}`, the only one that is known")
        state = ClusterState()
        parsers: dict[str, Callable[[Node, str], Any]] = {
            "topics": self._named(self._parse_topic, _fault_of_topic),
            "brokers": self._parse_brokers,
            "groups": self._named(self._parse_settings, _fault_of_name),
            "users": self._named(self._parse_user, _fault_of_name),
            "acls": self._parse_acls,
            "quotas": self._parse_quotas,
            "pipelines": self._named(self._parse_pipeline, fault_of_pipeline_name),
        }
        for section, parse in parsers.items():
            if section in found:
                setattr(state, section, parse(found[section], section))
        return state

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _report(self, node: Node, path: str, message: str) -> None:
        self.problems.append(Problem(node.line, path, message))

    def _mapping(self, node: Node, path: str, known: tuple[str, ...] | None = None) -> dict[str, Node]:
        if node.value is None:
            return {}
        if not isinstance(node.value, dict):
            self._report(node, path, "write keys and values here")
            return {}
        # Lines are noted here, where every key passes, so that later checks can name them by path.
        for key, each in node.value.items():
            self.lines[_join(path, key)] = each.line
            if known is not None and key not in known:
                self._report(each, _join(path, key), f"this key is not known: use {', '.join(known)}")
        return {key: each for key, each in node.value.items() if known is None or key in known}

    def _list(self, node: Node, path: str) -> list[Node]:
        if node.value is None:
            return []
        if not isinstance(node.value, list):
            self._report(node, path, "write a list here")
            return []
        return node.value

    def _number(self, node: Node | None, path: str, low: int, high: int) -> int | None:
        if node is None:
            return None
        if isinstance(node.value, int) and not isinstance(node.value, bool) and low <= node.value <= high:
            return node.value
        self._report(node, path, f"{_shown(node.value)} is not a whole number from {low} to {high}")
        return None

    def _text(self, node: Node | None, path: str, default: str = "") -> str:
        if node is None:
            return default
        if isinstance(node.value, str) and node.value:
            return node.value
        self._report(node, path, f"{_shown(node.value)} is not text: put it in quotes")
        return default

    def _named(self, parse: Callable[[Node, str], Any], fault_of: Callable[[str], str]) -> Callable[[Node, str], Any]:
        """A parser of a mapping by names."""

        def parse_all(node: Node, path: str) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for name, each in self._mapping(node, path).items():
                if fault := fault_of(name):
                    self._report(each, _join(path, name), fault)
                else:
                    found[name] = parse(each, _join(path, name))
            return found

        return parse_all

    # -- sections ------------------------------------------------------------------------------------------------------

    def _parse_topic(self, node: Node, path: str) -> TopicState:
        found = self._mapping(node, path, ("partitions", "replication_factor", "configs"))
        return TopicState(
            self._number(found.get("partitions"), f"{path}.partitions", 1, _PARTITIONS_MAX),
            self._number(found.get("replication_factor"), f"{path}.replication_factor", 1, _REPLICAS_MAX),
            self._parse_settings(found.get("configs", Node(None)), f"{path}.configs"),
        )

    def _parse_settings(self, node: Node, path: str) -> Settings:
        found: dict[str, str | None] = {}
        for key, each in self._mapping(node, path).items():
            # A file with these keys would set a throttle that nothing removes.
            if key in TEMPORARY_KEYS:
                self._report(each, _join(path, key), "reassignments set and remove this key: leave it out")
                continue
            try:
                found[key] = _setting_text(each)
            except ValueError:
                self._report(each, _join(path, key), "write text, a number, true, false, a list of text, or null")
        return found

    def _parse_brokers(self, node: Node, path: str) -> dict[str, Settings]:
        found: dict[str, Settings] = {}
        for name, each in self._mapping(node, path).items():
            if name != "default" and not (name.isdecimal() and int(name) <= _INT32_MAX and str(int(name)) == name):
                self._report(each, _join(path, name), "write the id of a broker, or default for all")
                continue
            found["" if name == "default" else name] = self._parse_settings(each, _join(path, name))
        return found

    def _parse_user(self, node: Node, path: str) -> UserState:
        if isinstance(node.value, dict) and "password" in node.value:
            # Removed, so that it is reported once, and never shown.
            at = node.value.pop("password")
            self._report(at, f"{path}.password", "passwords do not belong here: use password_env or password_file")
        found = self._mapping(node, path, ("mechanisms", "password_env", "password_file"))
        password = Password(
            self._text(found.get("password_env"), f"{path}.password_env"),
            self._text(found.get("password_file"), f"{path}.password_file"),
        )
        if all(password):
            self._report(node, path, "use one of password_env and password_file")
        mechanisms = self._parse_mechanisms(found.get("mechanisms", Node(None, node.line)), f"{path}.mechanisms")
        return UserState(mechanisms, password if any(password) else None)

    def _parse_mechanisms(self, node: Node, path: str) -> dict[ScramMechanism, int]:
        found: dict[ScramMechanism, int] = {}
        listed = isinstance(node.value, list)
        pairs = [(each, Node(ITERATIONS_MIN)) for each in node.value] if listed else [
            (Node(name, each.line), each) for name, each in self._mapping(node, path).items()
        ]  # fmt: skip
        for name, iterations in pairs:
            mechanism = _MECHANISMS.get(str(name.value).upper())
            if mechanism is None:
                self._report(name, path, f"{_shown(name.value)} is not one of {', '.join(_MECHANISMS)}")
                continue
            number = self._number(iterations, f"{path}.{name.value}", ITERATIONS_MIN, ITERATIONS_MAX)
            found[mechanism] = number or ITERATIONS_MIN
        if not pairs:
            self._report(node, path, f"name at least one of {', '.join(_MECHANISMS)}")
        return found

    def _parse_acls(self, node: Node, path: str) -> dict[AclBinding, None]:
        found: dict[AclBinding, None] = {}
        for number, each in enumerate(self._list(node, path)):
            place = f"{path}[{number}]"
            for binding in self._parse_acl(each, place):
                if fault := fault_of_binding(binding) or _fault_of_operation(binding):
                    self._report(each, place, fault)
                found[binding] = None
        return found

    def _parse_acl(self, node: Node, path: str) -> Iterator[AclBinding]:
        keys = ("resource_type", "name", "pattern_type", "permission", "principal", "host", "operation", "operations")
        found = self._mapping(node, path, keys)
        if "operations" in found:
            operations = [
                self._text(each, f"{path}.operations") for each in self._list(found["operations"], f"{path}.operations")
            ]
        else:
            operations = [self._text(found.get("operation"), f"{path}.operation")]

        def text(key: str, default: str) -> str:
            return self._text(found.get(key), f"{path}.{key}", default)

        kind = ResourceType.from_text(text("resource_type", "unknown"))
        name = text("name", CLUSTER_NAME if kind is ResourceType.CLUSTER else "")
        pattern = PatternType.from_text(text("pattern_type", "literal"))
        permission = Permission.from_text(text("permission", "allow"))
        principal, host = text("principal", ""), text("host", "*")
        for operation in operations:
            entry = AclEntry(principal, host, Operation.from_text(operation), permission)
            yield AclBinding(ResourcePattern(kind, name, pattern), entry)

    def _parse_quotas(self, node: Node, path: str) -> dict[QuotaEntity, Mapping[str, float | None]]:
        found: dict[QuotaEntity, Mapping[str, float | None]] = {}
        for number, each in enumerate(self._list(node, path)):
            place = f"{path}[{number}]"
            parts = self._mapping(each, place, ("entity", "quotas"))
            entity = self._parse_entity(parts.get("entity", Node(None, each.line)), f"{place}.entity")
            if entity in found:
                self._report(each, place, f"the quotas of {entity} occur twice")
            found[entity] = self._parse_rates(parts.get("quotas", Node(None)), f"{place}.quotas")
        return found

    def _parse_entity(self, node: Node, path: str) -> QuotaEntity:
        parts = self._mapping(node, path, QuotaEntity._fields)
        # null is the default of all that have no quota of their own
        names = {k: None if v.value is None else self._text(v, f"{path}.{k}") for k, v in parts.items()}
        if not names:
            self._report(node, path, "name a user, a client_id, both, or an ip")
        if "ip" in names and len(names) > 1:
            self._report(node, path, "an ip is not combined with a user or a client_id")
        return QuotaEntity(**names)

    def _parse_rates(self, node: Node, path: str) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for key, each in self._mapping(node, path, _QUOTAS).items():
            value = each.value
            if value is None:
                found[key] = None
            elif isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
                found[key] = float(value)
            else:
                self._report(each, f"{path}.{key}", f"{_shown(value)} is not a number above 0, or null")
        return found

    def _parse_pipeline(self, node: Node, path: str) -> PipelineDefinition:
        # Also without a file, which is then reported.
        found = {"file": Node(None, node.line), **self._mapping(node, path, PipelineDefinition._fields)}
        faults = {key: fault_of_field(key, each.value) for key, each in found.items()}
        for key, fault in faults.items():
            if fault:
                self._report(found[key], f"{path}.{key}", fault)
        return definition_of({"file": ""} | {key: each.value for key, each in found.items() if not faults[key]})


def _join(path: str, key: str) -> str:
    return key if path == "file" else f"{path}.{key}"


def _shown(value: object) -> str:
    return "this" if isinstance(value, dict | list) else repr(value)[:100]


def _fault_of_topic(name: str) -> str:
    if is_protected(name):
        return "topics whose names begin with __ belong to the brokers, and are not changed"
    if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        return "this is not the name of a topic: use 1 to 249 of a-z, A-Z, 0-9, ., _ and -"
    return ""


def _fault_of_name(name: str) -> str:
    return "" if name else "the name is empty"


def _fault_of_operation(binding: AclBinding) -> str:
    resource, entry = binding
    known = SUPPORTED_OPERATIONS.get(resource.resource_type, ())
    if entry.operation is Operation.ALL or entry.operation in known:
        return ""
    return f"{entry.operation.title} does not exist for a {resource.resource_type.title}"


def _setting_text(node: Node) -> str | None:
    """A value as the text that brokers get; None for null. Raises ValueError."""
    value = node.value
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(each.value, str) for each in value):
        return ",".join(each.value for each in value)
    raise ValueError
