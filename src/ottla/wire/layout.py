"""Sizes of a struct in one version: the fewest bytes on the wire, and bytes of memory once decoded.

Zone: pure. Arithmetic over declarations, for the compilers (`decoding`, `encoding`) and the tests.
"""

from __future__ import annotations

from struct import calcsize
from typing import NamedTuple

from ottla.wire.schema import NUMBERS, Field, StructType, struct_class


class Scope(NamedTuple):
    """The properties of a message that are fixed while one version is compiled."""

    version: int
    flexible: bool

    def plain_fields(self, cls: StructType) -> list[Field]:
        """The fields of a struct that are written in place, in order."""
        return [f for f in cls.FIELDS if f.tag is None and f.exists_in(self.version)]

    def tagged_fields(self, cls: StructType) -> list[Field]:
        """The fields of a struct that are written as tagged fields, in the order of their tags."""
        found = [f for f in cls.FIELDS if f.tag is not None and f.exists_in(self.version)]
        return sorted(found, key=lambda f: f.tag or 0)

    def absent_fields(self, cls: StructType) -> list[Field]:
        """The fields of a struct that this version does not have."""
        return [f for f in cls.FIELDS if not f.exists_in(self.version)]

    def length_size(self, kind: str) -> int:
        """Bytes of a length prefix: one (a varint, at the least) when flexible, else an int16 or int32."""
        if self.flexible:
            return 1
        return 2 if kind == "string" else 4

    def least_bytes(self, cls: StructType) -> int:
        """The fewest bytes a struct can take on the wire."""
        total = sum(self._least_of(cls, f, f.type) for f in self.plain_fields(cls))
        return total + 1 if self.flexible else total

    def least_element(self, cls: StructType, field: Field) -> int:
        """The fewest bytes one element of an array can take on the wire."""
        if field.of == "struct":
            return self.least_bytes(struct_class(cls, field))
        return self._least_of(cls, field, field.of)

    def _least_of(self, cls: StructType, field: Field, kind: str) -> int:
        if kind in NUMBERS:
            return calcsize(">" + NUMBERS[kind])
        if kind != "struct":
            return self.length_size(kind)
        return 1 if field.may_be_null(self.version) else self.least_bytes(struct_class(cls, field))

    def element_memory(self, cls: StructType, field: Field) -> int:
        """Bytes of memory of one decoded element of an array, with text and nested arrays counted as empty."""
        inside = self.struct_memory(struct_class(cls, field)) if field.of == "struct" else _MEMORY[field.of]
        return inside + 9  # 8 bytes of the list, which over-allocates by an eighth

    def struct_memory(self, cls: StructType) -> int:
        """Bytes of memory of a struct: header and slots in CPython's layout, and the objects in the slots."""
        read = sum(self._memory_of(cls, f, f.type) for f in self.plain_fields(cls))
        unread = [f for f in cls.FIELDS if f.tag is not None or not f.exists_in(self.version)]
        fresh = sum(self._memory_of(cls, f, f.type) for f in unread if f.type in {"array", "struct"})
        return 32 + 8 * len(cls.FIELDS) + read + fresh

    def _memory_of(self, cls: StructType, field: Field, kind: str) -> int:
        if kind == "struct":
            return 0 if field.may_be_null(self.version) else self.struct_memory(struct_class(cls, field))
        return _MEMORY[kind]


_MEMORY = {
    "int8": 0,  # CPython shares small numbers and booleans
    "bool": 0,
    "int16": 14,  # half of a number: most of these are ids and counts below 257, which are shared
    "uint16": 14,
    "int32": 14,
    "int64": 32,
    "float64": 24,
    "uuid": 49,
    "string": 50,
    "bytes": 33,
    "records": 184,  # a memoryview
    "array": 56,
}
"""Bytes per value, by `sys.getsizeof` of empty text and arrays."""
