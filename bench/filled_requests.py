"""Requests with as many elements in one array as fit into a frame: what costs a broker the most per byte.

Zone: pure. One case for each array of each request: its elements all name one wide topic, or each another thing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ottla.wire.apis import Api
from ottla.wire.codec import encode_bytes
from ottla.wire.schema import OWN_TAG, Field, Struct, StructType, struct_class

WIDE: Final = "wide" * 15
"""The topic that elements name in common."""
Path = tuple[str, ...]
_INDEXES: Final = {"partition", "partition_index", "partitions", "partition_indexes"}
_DEFAULTED: Final = {"acks", "replica_id", "key_type"}
_INTEGERS: Final = {"int8", "int16", "uint16", "int32", "int64"}
_SAMPLE: Final = 1_000


class Case(NamedTuple):
    """A request whose array at `path` has as many elements as fit."""

    api: Api
    version: int
    path: Path
    is_same: bool
    """Whether all elements name the same thing."""

    def __str__(self) -> str:
        what = "the same" if self.is_same else "others"
        return f"{self.api.name} {self.version}, {'.'.join(self.path)}: {what}"


def array_paths(cls: StructType, version: int) -> Iterator[tuple[Path, Field]]:
    """Every array in a message of that version, by the names of the fields that lead to it."""
    for field in cls.FIELDS:
        if not field.exists_in(version) or (field.tag is not None and field.tag >= OWN_TAG):
            continue
        if field.type == "array":
            yield (field.name,), field
        if field.struct:
            for path, inner in array_paths(struct_class(cls, field), version):
                yield (field.name, *path), inner


def cases_of(api: Api, version: int) -> Iterator[Case]:
    """The cases of one version."""
    for path, _ in array_paths(api.request, version):
        yield Case(api, version, path, False)
        yield Case(api, version, path, True)


def filled_request(case: Case, count: int, topic_id: Callable[[str], bytes]) -> Any:
    """The request of a case with that many elements. `topic_id`: the id of a topic."""
    return _Filler(case, count, topic_id).message()


def largest_request(case: Case, size: int, topic_id: Callable[[str], bytes]) -> Any:
    """Return a request of about `size` bytes; a shorter one if the array may not have so many elements."""

    def size_of(count: int) -> int:
        return len(encode_bytes(filled_request(case, count, topic_id), case.version))

    per_element = (size_of(_SAMPLE) - size_of(1)) / (_SAMPLE - 1)
    most = next(field.most for path, field in array_paths(case.api.request, case.version) if path == case.path)
    return filled_request(case, min(most, int(size / per_element)), topic_id)


class _Filler:
    """Makes the message of one case."""

    def __init__(self, case: Case, count: int, topic_id: Callable[[str], bytes]) -> None:
        self._case = case
        self._count = count
        self._topic_id = topic_id
        self._number = itertools.count()

    def message(self) -> Any:
        return self._fill_struct(self._case.api.request, self._case.path)

    def _fill_struct(self, cls: StructType, path: Path | None) -> Struct:
        out: Struct = cls()
        for field in cls.FIELDS:
            if field.exists_in(self._case.version) and (field.tag is None or field.tag < OWN_TAG):
                value = self._value_of(cls, field, path[1:] if path and path[0] == field.name else None)
                if value is not None:
                    setattr(out, field.name, value)
        return out

    def _value_of(self, cls: StructType, field: Field, path: Path | None) -> Any:
        if field.type != "array":
            return self._single_value(cls, field, field.type, path)
        many = self._count if path == () else 1
        return [self._single_value(cls, field, field.of, path or None) for _ in range(many)]

    def _single_value(self, cls: StructType, field: Field, kind: str, path: Path | None) -> Any:
        if kind == "struct":
            return self._fill_struct(struct_class(cls, field), path)
        if kind == "string":
            return WIDE if self._case.is_same else f"n{next(self._number)}"
        if kind == "uuid":
            return self._topic_id(WIDE) if self._case.is_same else next(self._number).to_bytes(16, "big")
        return self._number_of(field, kind) if kind in _INTEGERS else None

    def _number_of(self, field: Field, kind: str) -> int | None:
        """None: the default."""
        if field.name.endswith("resource_type"):
            return 2
        if field.name in _INDEXES and not self._case.is_same:
            return next(self._number) % 2**31
        if field.default or field.name in _DEFAULTED:
            return None
        return 0 if kind in {"int8", "int16"} or self._case.is_same else next(self._number) % 2**31
