"""JSON Schema, drafts 4 to 2020-12.

Zone: pure. jsonschema checks a schema against its draft; nothing is fetched from a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from jsonschema import Draft3Validator, Draft4Validator, Draft6Validator, Draft7Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.nesting import canonical_json, parse_json

MAX_REFERENCES: Final = 100
"""Maximum number of `$ref` from one to the next."""

_WITHOUT_MEANING: Final = frozenset(
    ("$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default", "examples")
)
"""Keywords that say nothing about which documents are accepted."""


class JsonSchema:
    """A parsed JSON schema."""

    def __init__(self, text: str, references: Mapping[str, str] | None = None) -> None:
        """Parse a schema. `references`: texts of other schemas by the URI that it refers to them with.

        Raises InvalidSchema.
        """
        document = parse_json(text)
        self.canonical = canonical_json(document)
        """The text without optional spaces: schemas that differ in no more are equal."""
        self.root: Any = document
        self._documents = {name: parse_json(each) for name, each in (references or {}).items()}
        self._base = _id_of(document)
        self._documents[self._base] = document
        for name, each in self._documents.items():
            _check_against_draft(name, each)
        draft = validator_for(document, default=Draft7Validator)
        self._ignores_siblings = draft in (Draft3Validator, Draft4Validator, Draft6Validator, Draft7Validator)
        """Whether the keywords beside a `$ref` do not count."""
        self._joined: dict[int, Any] = {}
        """Schemas with keywords beside a `$ref`, by their identities, as an `allOf`."""
        self._check_references()

    def resolve(self, node: Any) -> Any:
        """A schema, or the one that its `$ref` leads to. Raises InvalidSchema."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(node, dict) or not isinstance(node.get("$ref"), str):
                return node
            rest = {name: value for name, value in node.items() if name not in ("$ref", *_WITHOUT_MEANING)}
            if rest and not self._ignores_siblings:
                return self._joined.setdefault(id(node), {"allOf": [{"$ref": node["$ref"]}, rest]})
            node = self._follow(node["$ref"])
        raise InvalidSchema(f"more than {MAX_REFERENCES} references lead from one to the next")

    def _follow(self, reference: str) -> Any:
        uri, fragment = urldefrag(reference)
        document = self._documents.get(uri, self._documents.get(urljoin(self._base, uri))) if uri else self.root
        if document is None:
            raise InvalidSchema(f"the reference {reference!r} leads to a schema that is not named in the references")
        found = _find_pointer(document, fragment)
        if found is None:
            raise InvalidSchema(f"the reference {reference!r} leads to nothing")
        return found

    def _check_references(self) -> None:
        for node in _nodes_of(self.root):
            self.resolve(node)


def _check_against_draft(name: str, document: Any) -> None:
    if not isinstance(document, dict | bool):
        raise InvalidSchema(f"a JSON schema is an object, true or false, not {type(document).__name__}")
    try:
        validator_for(document, default=Draft7Validator).check_schema(document)
    except SchemaError as error:
        raise InvalidSchema(f"{name + ': ' if name else ''}{error.message} (at {error.json_path})") from error


def _id_of(document: Any) -> str:
    found = (document.get("$id") or document.get("id") or "") if isinstance(document, dict) else ""
    return urldefrag(found)[0] if isinstance(found, str) else ""


def _find_pointer(document: Any, fragment: str) -> Any:
    if fragment and not fragment.startswith("/"):
        return next((each for each in _nodes_of(document) if fragment in _anchors_of(each)), None)
    for name in map(_unescape, fragment.split("/")[1:]):
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document


def _unescape(part: str) -> str:
    return unquote(part).replace("~1", "/").replace("~0", "~")


def _anchors_of(node: Any) -> tuple[Any, ...]:
    if not isinstance(node, dict):
        return ()
    own = node.get("$id")
    return (node.get("$anchor"), own.removeprefix("#") if isinstance(own, str) else None)


def _nodes_of(document: Any) -> Iterator[Any]:
    left = [document]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
            # These keywords have values, not schemas.
            left += [child for name, child in node.items() if name not in ("enum", "const", "default", "examples")]
        elif isinstance(node, list):
            left += node
