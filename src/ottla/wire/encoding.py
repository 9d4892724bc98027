"""Generates the source of a straight-line encoder from a declaration and a version.

Zone: pure. Generates text only; `codec` compiles and keeps it.

In the generated code `put` appends to the list of small pieces. Adjacent values of fixed size are packed in one call,
with a length's first byte and a closing empty tag section (one zero byte)::

    def encode(o, parts, pieces, put):
     x1 = o.name.encode(); n1 = len(x1) + 1
     put(S3(o.error_code, n1) if n1 < 128 else S4(o.error_code) + uvarint(n1)); put(x1)
     …

The pieces of long arrays are joined on the way (`gather`). Record data is never joined: `keep` moves the pieces before
it into `parts`, then the Part itself.
"""

from __future__ import annotations

from struct import Struct as Packing
from struct import pack
from typing import Final

from ottla.seams import Part, Region
from ottla.wire import primitives
from ottla.wire.errors import FieldNotInVersion, refuse_length
from ottla.wire.layout import Scope
from ottla.wire.schema import NUMBERS, Field, StructType, struct_class

MANY: Final = 2_000
"""Number of small pieces after which those of an array are joined."""
JOINED: Final = 512
"""A piece of this number of bytes or more is not joined with others."""


class EncoderSource:
    """Generates one encoder. `lines` is its text, and `names` has the objects that the text refers to."""

    def __init__(self, scope: Scope, *, strict: bool, odd_text: bool = False) -> None:
        """`strict`: refuse to drop a value that the version cannot encode (requests).

        `odd_text`: text is encoded by `utf8.encode_text`; else text that is not UTF-8 raises UnicodeEncodeError.
        """
        self.scope = scope
        self.encode_text = ".encode(errors='surrogateescape')" if odd_text else ".encode()"
        self.strict = strict
        self.lines: list[str] = []
        self.names: dict[str, object] = {
            "U": primitives.UVARINT,
            "uvarint": primitives.uvarint,
            "write_tags": primitives.write_tags,
            "size_of": size_of,
            "keep": keep,
            "gather": gather,
            "pack": pack,
            "refuse": _refuse_field,
        }
        self._put = "put"
        self._run: list[tuple[str, str]] = []
        self._count = 0

    def function(self, cls: StructType) -> str:
        """The text of `encode(message, parts, pieces, put)`."""
        self.lines.append("def encode(o, parts, pieces, put):")
        self._write_struct(cls, "o", " ")
        self._flush_run(" ")
        if len(self.lines) == 1:
            self.lines.append(" pass")
        return "\n".join(self.lines)

    def head(self, cls: StructType, array: str) -> str:
        """The text of `encode` for the fields before an array."""
        return self._portion_text(cls, self._fields_around(cls, array)[0], is_end=False)

    def tail(self, cls: StructType, array: str) -> str:
        """The text of `encode` for the fields after that array, tagged ones included."""
        return self._portion_text(cls, self._fields_around(cls, array)[1], is_end=True)

    def _fields_around(self, cls: StructType, array: str) -> tuple[list[Field], list[Field]]:
        fields = self.scope.plain_fields(cls)
        at = next(number for number, field in enumerate(fields) if field.name == array)
        return fields[:at], fields[at + 1 :]

    def _portion_text(self, cls: StructType, fields: list[Field], *, is_end: bool) -> str:
        self.lines.append("def encode(o, parts, pieces, put):")
        for field in fields:
            self._write_field(cls, field, f"o.{field.name}", " ")
        if is_end and self.scope.flexible:
            self._write_end(cls, "o", " ")
        self._flush_run(" ")
        if len(self.lines) == 1:
            self.lines.append(" pass")
        return "\n".join(self.lines)

    def _new_name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    # Runs: consecutive values of fixed size become one packing.

    def _packing_expression(self, run: list[tuple[str, str]]) -> str:
        """The expression that packs a run."""
        if run == [("0", "B")]:
            return "U[0]"
        letters = "".join(letter for _, letter in run)
        name = "S" + letters.replace("?", "o")
        self.names[name] = Packing(">" + letters).pack
        return f"{name}({', '.join(value for value, _ in run)})"

    def _flush_run(self, indent: str) -> None:
        if self._run:
            self.lines.append(f"{indent}{self._put}({self._packing_expression(self._run)})")
            self._run = []

    def _write_varint(self, value: str, indent: str) -> None:
        """Text that encodes a length in a flexible version, packed with the run before it if it fits in one byte."""
        short = self._packing_expression([*self._run, (value, "B")]) if self._run else f"U[{value}]"
        long = f"{self._packing_expression(self._run)} + uvarint({value})" if self._run else f"uvarint({value})"
        self.lines.append(f"{indent}{self._put}({short} if {value} < 128 else {long})")
        self._run = []

    # Structs.

    def _write_struct(self, cls: StructType, value: str, indent: str) -> None:
        """Text that encodes one struct. May leave a run to flush."""
        if self.strict:
            self._write_refusals(cls, value, indent)
        for field in self.scope.plain_fields(cls):
            self._write_field(cls, field, f"{value}.{field.name}", indent)
        if self.scope.flexible:
            self._write_end(cls, value, indent)

    def _write_end(self, cls: StructType, value: str, indent: str) -> None:
        if self.scope.tagged_fields(cls):
            self._write_tags(cls, value, indent)
        else:
            self._run.append(("0", "B"))

    def _write_refusals(self, cls: StructType, value: str, indent: str) -> None:
        for field in self.scope.absent_fields(cls):
            if not field.ignorable and field.type != "records":
                condition = self._differs_condition(cls, field, f"{value}.{field.name}")
                where = f"{cls.__qualname__}.{field.name}"
                self.lines.append(f"{indent}if {condition}: refuse({where!r}, {self.scope.version})")

    def _differs_condition(self, cls: StructType, field: Field, value: str) -> str:
        """The condition that a field is not at its default."""
        if field.type == "array":
            return f"{value} is not None" if field.default is None else f"{value} is None or {value}"
        if field.type == "struct" and field.nullable == "none":
            inner = struct_class(cls, field)
            return " or ".join(self._differs_condition(inner, f, f"{value}.{f.name}") for f in inner.FIELDS)
        return f"{value} is not None" if field.default is None else f"{value} != {field.default!r}"

    def _write_tags(self, cls: StructType, value: str, indent: str) -> None:
        self._flush_run(indent)
        tags, outer = self._new_name("t"), self._put
        self.lines.append(f"{indent}{tags} = []")
        for field in self.scope.tagged_fields(cls):
            # A tag's value comes after its size, so it is encoded apart from the message first.
            pieces = self._new_name("q")
            self._put = f"{pieces}p"
            condition = self._differs_condition(cls, field, f"{value}.{field.name}")
            self.lines.append(f"{indent}if {condition}:")
            self.lines.append(f"{indent} {pieces} = []; {self._put} = {pieces}.append")
            self._write_field(cls, field, f"{value}.{field.name}", indent + " ")
            self._flush_run(indent + " ")
            self.lines.append(f"{indent} {tags}.append(({field.tag}, b''.join({pieces})))")
        self._put = outer
        self.lines.append(f"{indent}{outer}(write_tags({tags}) if {tags} else U[0])")

    # Fields.

    def _write_field(self, cls: StructType, field: Field, value: str, indent: str) -> None:
        kind, null = field.type, field.may_be_null(self.scope.version)
        if kind in NUMBERS:
            self._run.append((value, NUMBERS[kind]))
        elif kind == "struct":
            self._write_nested(cls, field, value, indent)
        elif kind == "array":
            self._write_array(cls, field, value, indent)
        else:
            self._write_text(kind, value, null=null, indent=indent)

    def _write_length(self, kind: str, length: str, indent: str) -> None:
        if self.scope.flexible:
            self._write_varint(length, indent)
        else:
            self._run.append((length, "h" if kind == "string" else "i"))
            self._flush_run(indent)

    def _write_measure(
        self, value: str, convert: str, size: str, *, null: bool, indent: str, empty: str
    ) -> tuple[str, str]:
        """Text that assigns bytes or a list and its length to variables. Returns both names."""
        variable, length = self._new_name("x"), self._new_name("n")
        plus, none = (" + 1", "0") if self.scope.flexible else ("", "-1")
        if not null:
            self.lines.append(f"{indent}{variable} = {value}{convert}; {length} = {size}({variable}){plus}")
            return variable, length
        change = f"{variable} = {variable}{convert}; " if convert else ""
        self.lines += [
            f"{indent}{variable} = {value}",
            f"{indent}if {variable} is None: {length} = {none}; {variable} = {empty}",
            f"{indent}else: {change}{length} = {size}({variable}){plus}",
        ]
        return variable, length

    def _write_text(self, kind: str, value: str, *, null: bool, indent: str) -> None:
        convert = self.encode_text if kind == "string" else ""
        size = "size_of" if kind == "records" else "len"
        variable, length = self._write_measure(value, convert, size, null=null, indent=indent, empty="b''")
        self._write_length(kind, length, indent)
        if kind == "records":
            self.lines.append(f"{indent}if {variable}: keep({variable}, parts, pieces)")
        else:
            self.lines.append(f"{indent}{self._put}({variable})")

    def _write_nested(self, cls: StructType, field: Field, value: str, indent: str) -> None:
        variable, inner = self._new_name("x"), struct_class(cls, field)
        self.lines.append(f"{indent}{variable} = {value}")
        if not field.may_be_null(self.scope.version):
            self._write_struct(inner, variable, indent)
            return
        self._flush_run(indent)
        null = "00" if field.tag is not None else "ff"
        self.lines.append(f"{indent}if {variable} is None: {self._put}(b'\\x{null}')")
        self.lines.append(f"{indent}else:")
        self._run.append(("1", "B"))
        self._write_struct(inner, variable, indent + " ")
        self._flush_run(indent + " ")

    def _write_array(self, cls: StructType, field: Field, value: str, indent: str) -> None:
        null = field.may_be_null(self.scope.version)
        variable, length = self._write_measure(value, "", "len", null=null, indent=indent, empty="()")
        self._write_length("array", length, indent)
        if field.of in NUMBERS and field.of != "uuid":
            letter = NUMBERS[field.of]
            packed = f"pack(f'>{{len({variable})}}{letter}', *{variable})"
            self.lines.append(f"{indent}if {variable}: {self._put}({packed})")
            return
        item = self._new_name("y")
        self.lines.append(f"{indent}for {item} in {variable}:")
        if field.of == "struct":
            self._write_struct(struct_class(cls, field), item, indent + " ")
        elif field.of == "uuid":
            self._run.append((item, "16s"))
        else:
            self._write_text(field.of, item, null=False, indent=indent + " ")
        self._flush_run(indent + " ")
        if self._put == "put":  # not inside a tagged field, whose length comes first
            self.lines.append(f"{indent} if len(pieces) > {MANY}: gather(pieces)")


def size_of(part: Part) -> int:
    """The size of a part of a message. Raises ImpossibleLength for a Region with a negative size."""
    if not isinstance(part, Region):
        return len(part)
    return part.size if part.size >= 0 else refuse_length(part.size)


def gather(pieces: list[bytes]) -> None:
    """Join the small pieces at the end of the list: each has some forty bytes of overhead."""
    first = next((at for at, piece in enumerate(pieces) if len(piece) < JOINED), len(pieces))
    if first > MANY // 2:
        first = 0
    pieces[first:] = [b"".join(pieces[first:])]


def keep(part: Part, parts: list[Part], pieces: list[bytes]) -> None:
    """Move the pieces so far into `parts` as one, then add a part unchanged."""
    parts.append(b"".join(pieces))
    pieces.clear()
    parts.append(part)


def _refuse_field(field: str, version: int) -> None:
    raise FieldNotInVersion(f"{field} cannot be sent in version {version}")
