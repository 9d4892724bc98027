"""Whether a JSON schema accepts all documents that another one accepts, decided by their keywords.

Zone: pure. A schema that is found compatible is; some pairs are refused that a proof would accept, such as one pattern
that includes another. The names of reasons are those of Confluent's Schema Registry. `format`, `title` and the like say
nothing about what is accepted. The parts of `oneOf` are taken for exclusive, as Confluent's registry takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ottla.schemas.errors import Incompatibility, InvalidSchema
from ottla.schemas.json_arrays import find_array_reasons
from ottla.schemas.json_objects import find_object_reasons
from ottla.schemas.json_schema import JsonSchema
from ottla.schemas.json_values import find_value_reasons

MAX_COMPARISONS: Final = 100_000
"""Maximum number of pairs of schemas."""


def find_json_incompatibilities(reader: JsonSchema, writer: JsonSchema) -> list[Incompatibility]:
    """Reasons why `reader` may refuse a document that `writer` accepts; none: it cannot. Raises InvalidSchema."""
    return Comparison(reader, writer).compare(reader.root, writer.root, "#")


class Comparison:
    """Compares the schemas of two documents. Pairs that are being compared already are taken for compatible."""

    def __init__(self, reader: JsonSchema, writer: JsonSchema) -> None:
        self._documents = (reader, writer)
        self._seen: dict[tuple[int, int], list[Incompatibility] | None] = {}
        self._kept: list[Any] = []
        """Compared schemas that are not part of a document, so that their identities stay unique."""
        self._count = 0

    def compare(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        """Reasons why the schema `reader` does not accept all that `writer` does. Raises InvalidSchema."""
        self._count += 1
        if self._count > MAX_COMPARISONS:
            raise InvalidSchema(f"comparing the schemas takes more than {MAX_COMPARISONS:,} steps")
        reader, writer = self._documents[0].resolve(reader), self._documents[1].resolve(writer)
        if reader in (True, {}) or writer is False:
            return []
        pair = id(reader), id(writer)
        if pair not in self._seen:
            self._kept += (reader, writer)
            self._seen[pair] = None
            self._seen[pair] = self._compare_resolved(reader, writer, path)
        return self._seen[pair] or []

    def accepts(self, reader: Any, writer: Any, path: str) -> bool:
        """Whether the schema `reader` accepts all that `writer` does."""
        return not self.compare(reader, writer, path)

    def _compare_resolved(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        if reader is False:
            return [Incompatibility("TYPE_NARROWED", path, "nothing is accepted any more")]
        writer = {} if writer is True else writer
        found = [*self._find_reasons(reader, writer, path)]
        if found and self._is_covered_by_parts(reader, writer, path):
            return []
        return found

    def _find_reasons(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        yield from find_value_reasons(reader, writer, path)
        yield from find_object_reasons(self, reader, writer, path)
        yield from find_array_reasons(self, reader, writer, path)
        for keyword, check in _COMBINED.items():
            if keyword in reader:
                yield from check(self, keyword, reader[keyword], writer, path)

    def _is_covered_by_parts(self, reader: Any, writer: Any, path: str) -> bool:
        """Each part accepts all that `allOf` accepts; one of the parts accepts what `anyOf` or `oneOf` accepts."""
        if any(self.accepts(reader, part, path) for part in writer.get("allOf", ())):
            return True
        sums = [writer[keyword] for keyword in ("anyOf", "oneOf") if keyword in writer]
        return any(all(self.accepts(reader, part, path) for part in parts) for parts in sums)

    def check_all_of(self, keyword: str, parts: list[Any], writer: Any, path: str) -> Iterator[Incompatibility]:
        """Each part accepts what the writer does."""
        whole = {name: value for name, value in writer.items() if name != keyword}
        for at, part in enumerate(parts):
            sources = [whole, *writer.get(keyword, ())]
            if not any(self.accepts(part, source, f"{path}/{keyword}/{at}") for source in sources):
                yield Incompatibility("PRODUCT_TYPE_EXTENDED", f"{path}/{keyword}/{at}", "a condition was added")

    def check_any_of(self, keyword: str, parts: list[Any], writer: Any, path: str) -> Iterator[Incompatibility]:
        """One part accepts each part of the writer's, or all that it accepts."""
        others = next((writer[name] for name in (keyword, "anyOf", "oneOf") if name in writer), None)
        if others is None:
            if not any(self.accepts(part, writer, path) for part in parts):
                yield Incompatibility(
                    "COMBINED_TYPE_SUBSCHEMAS_CHANGED", f"{path}/{keyword}", "no part accepts all of it"
                )
            return
        for at, other in enumerate(others):
            if not any(self.accepts(part, other, f"{path}/{keyword}") for part in parts):
                text = f"no part accepts what part {at} of the writer's does"
                yield Incompatibility("SUM_TYPE_NARROWED", f"{path}/{keyword}", text)

    def check_not(self, keyword: str, refused: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        """All that the reader refuses, the writer refuses."""
        reverse = Comparison(self._documents[1], self._documents[0])
        if keyword not in writer or not reverse.accepts(writer[keyword], refused, path):
            yield Incompatibility("NOT_TYPE_EXTENDED", f"{path}/{keyword}", "more is refused than before")


_COMBINED: Final[dict[str, Callable[..., Iterator[Incompatibility]]]] = {
    "allOf": Comparison.check_all_of,
    "anyOf": Comparison.check_any_of,
    "oneOf": Comparison.check_any_of,
    "not": Comparison.check_not,
}
