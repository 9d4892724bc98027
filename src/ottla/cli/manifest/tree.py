"""The text of a file as a tree of values that know their lines: YAML, or JSON.

Zone: real. Imports PyYAML when a file is YAML. Bytes, values and depth are bounded; aliases, tags and keys that occur
twice are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ottla.cli.manifest.state import Problem

BYTES_MAX: Final = 8 << 20
NODES_MAX: Final = 500_000
DEPTH_MAX: Final = 12
_WORDS: Final = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,30}")
_NUMBER: Final = re.compile(r"[-+]?(?:\.[0-9]{1,30}|[0-9]{1,30}(?:\.[0-9]{0,30})?)(?:[eE][-+]?[0-9]{1,3})?")


class Node(NamedTuple):
    """A value: text, a number, a boolean, None, a dictionary or a list of nodes. line 0: unknown."""

    value: Any
    line: int = 0


class BadFile(ValueError):
    """The file is not a tree."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def parse_text(text: str) -> Node:
    """The tree of a text: JSON if it begins with a brace, otherwise YAML. Raises BadFile."""
    if text.lstrip().startswith("{"):
        return _parse_json(text)
    return _parse_yaml(text)


def _bad_file(message: str, line: int = 0) -> BadFile:
    return BadFile(Problem(line, "file", message))


# -- JSON ------------------------------------------------------------------------------------------------------------


def _parse_json(text: str) -> Node:
    try:
        found = json.loads(text, object_pairs_hook=_unique_keys)
        return _json_node(found, [NODES_MAX], DEPTH_MAX)
    except json.JSONDecodeError as error:
        raise _bad_file(f"this is not JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise _bad_file(f"values are nested more than {DEPTH_MAX} deep") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        # Both parsers would take the last one in silence.
        if key in found:
            raise _bad_file(f"the key {key!r} occurs twice")
        found[key] = value
    return found


def _json_node(value: Any, left: list[int], depth: int) -> Node:
    # Counted in one place for the whole file, however the values are nested.
    left[0] -= 1
    _check_bounds(left[0], depth)
    if isinstance(value, dict):
        return Node({key: _json_node(each, left, depth - 1) for key, each in value.items()})
    if isinstance(value, list):
        return Node([_json_node(each, left, depth - 1) for each in value])
    return Node(value)


def _check_bounds(left: int, depth: int, line: int = 0) -> None:
    if left < 0:
        raise _bad_file(f"the file has more than {NODES_MAX} values", line)
    if depth < 0:
        raise _bad_file(f"values are nested more than {DEPTH_MAX} deep", line)


# -- YAML ------------------------------------------------------------------------------------------------------------


def _parse_yaml(text: str) -> Node:
    import yaml

    try:
        return _YamlTree(text).read_document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _bad_file(f"this is not YAML: {error.problem or error.context}", mark.line + 1 if mark else 0) from None
    except yaml.YAMLError as error:
        raise _bad_file(f"this is not YAML: {str(error).splitlines()[0]}") from None


class _YamlTree:
    """Reads events, so that nothing is built from an alias or a tag."""

    def __init__(self, text: str) -> None:
        import yaml

        self._yaml = yaml
        # libyaml where PyYAML was built with it: the same events, in less time.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Iterator[Any] = yaml.parse(text, Loader=loader)
        self._left = NODES_MAX

    def read_document(self) -> Node:
        """The first document, which must be the only one."""
        next(self._events)  # the start of the stream
        if isinstance(next(self._events), self._yaml.StreamEndEvent):
            return Node(None, 1)
        root = self._read_node(next(self._events), DEPTH_MAX)
        next(self._events)  # the end of the document
        after = next(self._events)
        if not isinstance(after, self._yaml.StreamEndEvent):
            raise _bad_file("a second document begins here", after.start_mark.line + 1)
        return root

    def _read_node(self, event: Any, depth: int) -> Node:
        line = event.start_mark.line + 1
        self._left -= 1
        _check_bounds(self._left, depth, line)
        # Nine lines of aliases can stand for a billion values.
        if isinstance(event, self._yaml.AliasEvent):
            raise _bad_file("aliases are not read: write the value out", line)
        # A tag asks for a type of the reader's language; none of a description needs one.
        if event.tag is not None and event.tag != "!":
            raise _bad_file(f"the tag {event.tag[:50]!r} is not read", line)
        if isinstance(event, self._yaml.ScalarEvent):
            return Node(_scalar(event.value) if event.implicit[0] else event.value, line)
        if isinstance(event, self._yaml.SequenceStartEvent):
            return Node(list(self._read_items(depth - 1)), line)
        return Node(self._read_pairs(depth - 1), line)

    def _read_items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self._events), self._yaml.SequenceEndEvent):
            yield self._read_node(event, depth)

    def _read_pairs(self, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while not isinstance(event := next(self._events), self._yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            if not isinstance(event, self._yaml.ScalarEvent):
                raise _bad_file("a key is not text", line)
            if event.value in found:
                raise _bad_file(f"the key {event.value!r} occurs twice", line)
            found[event.value] = self._read_node(next(self._events), depth)
        return found


def _scalar(text: str) -> object:
    """A plain scalar by the core schema of YAML 1.2: `yes`, `on` and `12:30` are text."""
    # YAML 1.1, which PyYAML implements, would make a boolean of the topic `no`.
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


# -- writing -----------------------------------------------------------------------------------------------------------

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NOT_PLAIN: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def yaml_text(value: Any) -> str:
    """A document of dictionaries, lists and scalars as YAML. Text that could be read otherwise is quoted."""
    return "\n".join(_yaml_lines(value)) + "\n"


def _yaml_lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _yaml_entry(f"{_yaml_scalar(key)}:", each)
        return
    for each in value:
        lines = list(_yaml_lines(each)) if isinstance(each, dict | list) and each else [_yaml_scalar(each)]
        yield f"- {lines[0]}"
        yield from (f"  {line}" for line in lines[1:])


def _yaml_entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield key
        yield from (f"  {line}" for line in _yaml_lines(value))
    else:
        yield f"{key} {_yaml_scalar(value)}"


def _yaml_scalar(value: Any) -> str:
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_PLAIN
    return value if plain else json.dumps(value, ensure_ascii=True)
