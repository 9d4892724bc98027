"""The declaration language of messages: one class per message, with all its versions.

Zone: pure. Contains the words of a declaration (`int32`, `string`, `array` …), the metaclass that turns them into slots
and a constructor, and version ranges; nothing here reads or writes bytes.

A declaration reads like the tables of Kafka's protocol guide::

    class DeleteTopicsRequest(Message, api_key=20, versions="0-6", flexible="4+"):
        class DeleteTopicState(Struct):
            name: str | None = nullable_string("6+", default=None)
            topic_id: bytes = uuid("6+")

        topics: list[DeleteTopicsRequest.DeleteTopicState] = array("6+")
        topic_names: list[str] = array("0-5", of="string")
        timeout_ms: int = int32("0+")

A range is "3" (only that), "3-5", "3+", or "none". The annotation of an array or struct field defines the type of its
elements. A field that a version lacks has its default after decoding, and is not encoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, ClassVar, Final, cast, dataclass_transform

from ottla.seams import Part
from ottla.wire.limits import MAX_ELEMENTS

ZERO_UUID: Final = bytes(16)
OWN_TAG: Final = 10_000
"""Tagged fields with this number or a higher one are Ottla's own, between brokers; Kafka's are numbered from 0 on."""
LATEST: Final = 0x7FFF
"""The open end of a range such as "3+"."""

Decoder = Callable[["bytes | memoryview", int, int], tuple[Any, int]]
"""(buffer, position, end) to (message, position after it)."""
SlicedDecoder = Callable[[memoryview, int, int], Generator[Any, None, tuple[Any, int]]]
"""The same as a generator, which yields between slices."""
Encoder = Callable[[Any, list[Part], list[bytes], Callable[[bytes], None]], None]
"""(message, finished parts, pieces of the next part, append to the pieces)."""

NUMBERS: Final = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
}
"""Types of fixed size, with their letter in `struct`."""


@cache
def version_range(text: str) -> range:
    """The versions that a range text covers. Raises ValueError when the text is malformed."""
    if text == "none":
        return range(0)
    match = re.fullmatch(r"(\d+)(?:(\+)|-(\d+))?", text)
    if match is None:
        raise ValueError(f"not a version range: {text!r}")
    first = int(match[1])
    last = LATEST if match[2] else int(match[3] or first)
    return range(first, last + 1)


class Field:
    """One declared field. `type` is a key of NUMBERS, or "string", "bytes", "records", "struct", "array"."""

    __slots__ = ("default", "ignorable", "most", "name", "nullable", "of", "struct", "tag", "type", "versions")

    def __init__(
        self, kind: str, versions: str, default: object, nullable: str | None, tag: int | None, ignorable: bool
    ) -> None:
        self.name = ""
        self.type = kind
        self.versions = versions
        self.default = default
        self.nullable = "none" if nullable is None else nullable
        self.tag = tag
        self.ignorable = ignorable
        self.of = ""
        """The type of an array's elements, as above."""
        self.most = MAX_ELEMENTS
        """The most elements of an array; a message with more is malformed."""
        self.struct = ""
        """The name of the class, inside the message's class, of a struct or of an array's structs."""

    def exists_in(self, version: int) -> bool:
        """Whether that version has the field."""
        return version in version_range(self.versions)

    def may_be_null(self, version: int) -> bool:
        """Whether the field can be null in that version."""
        return version in version_range(self.nullable)


# The functions below return a Field, but are annotated with the type of the field's value: the metaclass replaces the
# Fields by slots, so the type checker sees attributes and constructor arguments with a default.


def int8(versions: str, default: int = 0, *, tag: int | None = None, ignorable: bool = False) -> int:
    """A signed byte."""
    return cast("int", Field("int8", versions, default, None, tag, ignorable))


def int16(versions: str, default: int = 0, *, tag: int | None = None, ignorable: bool = False) -> int:
    """A signed 16-bit number."""
    return cast("int", Field("int16", versions, default, None, tag, ignorable))


def uint16(versions: str, default: int = 0, *, tag: int | None = None, ignorable: bool = False) -> int:
    """An unsigned 16-bit number."""
    return cast("int", Field("uint16", versions, default, None, tag, ignorable))


def int32(versions: str, default: int = 0, *, tag: int | None = None, ignorable: bool = False) -> int:
    """A signed 32-bit number."""
    return cast("int", Field("int32", versions, default, None, tag, ignorable))


def int64(versions: str, default: int = 0, *, tag: int | None = None, ignorable: bool = False) -> int:
    """A signed 64-bit number."""
    return cast("int", Field("int64", versions, default, None, tag, ignorable))


def float64(versions: str, default: float = 0.0, *, tag: int | None = None, ignorable: bool = False) -> float:
    """An IEEE 754 double."""
    return cast("float", Field("float64", versions, default, None, tag, ignorable))


def boolean(versions: str, default: bool = False, *, tag: int | None = None, ignorable: bool = False) -> bool:
    """One byte; 0 is false, everything else true."""
    return cast("bool", Field("bool", versions, default, None, tag, ignorable))


def uuid(versions: str, default: bytes = ZERO_UUID, *, tag: int | None = None, ignorable: bool = False) -> bytes:
    """16 bytes."""
    return cast("bytes", Field("uuid", versions, default, None, tag, ignorable))


def string(versions: str, default: str = "", *, tag: int | None = None, ignorable: bool = False) -> str:
    """UTF-8 of at most 32767 bytes."""
    return cast("str", Field("string", versions, default, None, tag, ignorable))


def octets(versions: str, default: bytes = b"", *, tag: int | None = None, ignorable: bool = False) -> bytes:
    """Kafka's type "bytes", copied out of the input."""
    return cast("bytes", Field("bytes", versions, default, None, tag, ignorable))


def nullable_string(
    versions: str, nullable: str, default: str | None, *, tag: int | None = None, ignorable: bool = False
) -> str | None:
    """A string that can be null in the versions `nullable`."""
    return cast("str", Field("string", versions, default, nullable, tag, ignorable))


def nullable_octets(
    versions: str, nullable: str, default: bytes | None, *, tag: int | None = None, ignorable: bool = False
) -> bytes | None:
    """Bytes that can be null in the versions `nullable`."""
    return cast("bytes", Field("bytes", versions, default, nullable, tag, ignorable))


def record_data(versions: str, nullable: str = "none") -> Part | None:
    """Record batches, opaque: a slice of the input when decoded (never a copy), any Part when encoded."""
    return cast("bytes", Field("records", versions, None, nullable, None, False))


def array(
    versions: str,
    of: str = "struct",
    *,
    nullable: str = "none",
    null: bool = False,
    tag: int | None = None,
    ignorable: bool = False,
    most: int = MAX_ELEMENTS,
) -> Any:
    """A list of `of`: "struct" (the class of the annotation), a key of NUMBERS, "string" or "bytes".

    `null`: the default is null rather than an empty list. `most`: set for arrays that a handler takes as a whole, far
    above what a client needs; a message with more elements is malformed.
    """
    field = Field("array", versions, None if null else (), nullable, tag, ignorable)
    field.of, field.most = of, most
    return field


def struct(versions: str, *, nullable: str = "none", tag: int | None = None, ignorable: bool = False) -> Any:
    """One struct, of the class of the annotation; by default null if it can be null, else a new one."""
    return Field("struct", versions, None, nullable, tag, ignorable)


class StructType(type):
    """Turns a class of Fields into one with slots; its constructor is generated at first use (see `prepare_class`)."""

    FIELDS: tuple[Field, ...]
    OWNER: StructType
    """The message that the struct belongs to; a message is its own owner."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], space: dict[str, Any], **options: str | int | bool
    ) -> StructType:
        """Replace the Fields of the class body by slots of the same names."""
        fields = {key: value for key, value in space.items() if isinstance(value, Field)}
        for key, field in fields.items():
            field.name = key
            if "struct" in {field.type, field.of}:
                annotation = space["__annotations__"][key].removesuffix(" | None")
                field.struct = re.findall(r"\w+", annotation)[-1]
            del space[key]
        space["FIELDS"] = tuple(fields.values())
        space["__slots__"] = tuple(fields)
        return super().__new__(mcs, name, bases, space, **options)


@dataclass_transform(kw_only_default=True)
class Struct(metaclass=StructType):
    """A declared structure. Construct it with keywords; omitted fields have Kafka's default."""

    FIELDS: ClassVar[tuple[Field, ...]]

    def __init__(self, **values: Any) -> None:
        prepare_class(type(self))
        type(self).__init__(self, **values)

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by content

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in self.FIELDS)

    def __repr__(self) -> str:
        shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS)
        return f"{type(self).__qualname__}({shown})"


class Message(Struct):
    """A request, a response, or another top-level structure with versions of its own."""

    API_KEY: ClassVar[int] = -1
    VERSIONS: ClassVar[range] = range(0)
    """Every version that the declaration covers."""
    FLEXIBLE: ClassVar[range] = range(0)
    """The versions with compact lengths and tagged fields (KIP-482)."""
    HAS_RECORDS: ClassVar[bool] = False
    """Whether it contains record data: then the input is sliced rather than copied."""
    DECODERS: ClassVar[dict[int, Decoder]]
    SLICED: ClassVar[dict[int, SlicedDecoder]]
    ENCODERS: ClassVar[dict[int, Encoder]]
    """Compiled functions by version: a cache of `codec` with at most one entry per version."""

    BETWEEN_BROKERS: ClassVar[bool] = False
    """Whether only brokers send it."""

    def __init_subclass__(
        cls, *, versions: str, flexible: str = "none", api_key: int = -1, between_brokers: bool = False
    ) -> None:
        cls.API_KEY = api_key
        cls.BETWEEN_BROKERS = between_brokers
        cls.VERSIONS = version_range(versions)
        cls.FLEXIBLE = version_range(flexible)
        cls.DECODERS, cls.SLICED, cls.ENCODERS = {}, {}, {}
        cls.OWNER = cls
        structs: list[StructType] = [value for value in vars(cls).values() if isinstance(value, StructType)]
        for inner in structs:
            inner.OWNER = cls
        structs.append(cls)
        cls.HAS_RECORDS = any(f.type == "records" for part in structs for f in part.FIELDS)


class _Fresh:
    """The default of a constructor argument whose value is a new list or struct."""


_FRESH: Final = _Fresh()


def prepare_class(cls: StructType) -> None:
    """Generate the constructor of a class, once: at its first use, or ahead of it by `codec.warm`."""
    if "__init__" in vars(cls):
        return
    space: dict[str, object] = {"FRESH": _FRESH}
    arguments, lines = ["self", "*"], []
    for field in cls.FIELDS:
        fresh = fresh_default(cls, field, space)
        arguments.append(f"{field.name}={'FRESH' if fresh else repr(field.default)}")
        value = f"{fresh} if {field.name} is FRESH else {field.name}" if fresh else field.name
        lines.append(f" self.{field.name} = {value}")
    signature = ", ".join(arguments) if cls.FIELDS else "self"
    exec(f"def __init__({signature}):\n" + ("\n".join(lines) or " pass"), space)  # noqa: S102  # the text is generated, not input
    cls.__init__ = space["__init__"]  # type: ignore[misc]  # has the signature that the type checker derives


def fresh_default(cls: StructType, field: Field, space: dict[str, object]) -> str:
    """The expression for a default that must be new each time, "" if there is none; adds its names to `space`."""
    if field.type == "array" and field.default is not None:
        return "[]"
    if field.type == "struct" and field.nullable == "none":
        space[field.struct] = struct_class(cls, field)
        return f"{field.struct}()"
    return ""


def struct_class(cls: StructType, field: Field) -> StructType:
    """The class of a struct field of `cls`, or of the elements of an array field."""
    found = getattr(cls.OWNER, field.struct)
    assert isinstance(found, StructType), f"{cls.__qualname__}.{field.name}: {field.struct!r} is not a struct"
    return found
