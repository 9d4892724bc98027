"""Generates the source of a straight-line decoder from a declaration and a version.

Zone: pure. Generates text only; `codec` compiles and keeps it.

The generated code for a struct of a number, a string and an array in a flexible version::

    def decode(b, p, end):
     o1 = new(C1)
     o1.timeout_ms, n2 = S3(b, p); p += 5                # neighbours of fixed size fuse, a length's first byte included
     if n2 > 127: n2, p = read_string_length(b, p - 1)
     if not n2: fail('name')
     e = p + n2 - 1; o1.name = b[p:e].decode(); p = e
     …
     return o1, p

Bounds: a number past the end raises IndexError or struct.error. A *slice* past the end is silently short, but `p` then
stays beyond `end` (positions only grow), so every later read raises, every count exceeds the remaining bytes, and the
caller's last check `p <= end` catches the rest. Before an array is created its count is compared with the remaining
bytes, and the memory of its elements is subtracted from `room`, which is a multiple of the input.
"""

from __future__ import annotations

from struct import Struct as Packing
from struct import calcsize, unpack_from

from ottla.wire import errors, primitives
from ottla.wire.layout import Scope
from ottla.wire.limits import ALLOWANCE, NUMBERS_PER_ELEMENT, SLICE, SLICE_BYTES, TAGS_PER_ELEMENT
from ottla.wire.schema import NUMBERS, Field, StructType, fresh_default, prepare_class, struct_class

_TOP = "o1"
"""The variable that holds the message."""


class DecoderSource:
    """Generates one decoder. `lines` is its text, and `names` has the objects that the text refers to."""

    def __init__(
        self, scope: Scope, *, view: bool, amplification: int, odd_text: bool = False, sliced: bool = False
    ) -> None:
        """`view`: the input is a memoryview (the message has records), else bytes.

        `odd_text`: text that is not UTF-8 is decoded by `utf8.decode_text`; else it raises UnicodeDecodeError.

        `amplification`: bytes of memory allowed per byte of input; 0: no limit. `sliced`: the decoder is a generator
        that yields the unfinished message after every SLICE elements of structs or text, or as many numbers, uuids
        and tags as cost the same, or SLICE_BYTES. With it, it yields the number of arrays that end in an unfinished
        element: the outermost one, and those inside of it. At each yield the caller may take finished elements out of
        the arrays (in place). It returns the decoded message.
        """
        self.scope = scope
        self.view = view
        self.amplification = amplification
        self.sliced = sliced
        self.decode_text = "decode(errors='surrogateescape')" if odd_text else "decode()"
        self.lines: list[str] = []
        self.names: dict[str, object] = {
            "new": object.__new__,
            "fail": errors.fail,
            "read_uvarint": primitives.read_uvarint,
            "read_string_length": primitives.read_string_length,
            "read_tag_count": primitives.read_tag_count,
            "read_tag": primitives.read_tag,
            "skip_tags": primitives.skip_tags,
        }
        self._run: list[tuple[str, str]] = []
        self._count = 0
        self._depth = 0

    def function(self, cls: StructType) -> str:
        """The text of `decode(b, p, end) -> (message, position after it)`."""
        self.lines.append("def decode(b, p, end):")
        if self.amplification:
            self.lines.append(f" room = end * {self.amplification - 1} + {ALLOWANCE}")
        if self.sliced:
            self.lines.append(f" left = {SLICE}; most = p + {SLICE_BYTES}")
        top = self._write_struct(cls, cls.__name__, " ")
        assert top == _TOP
        self._flush_run(" ")
        if self.sliced:
            self.lines.append(f" if left > {SLICE}: yield {top}, 0")  # a generator also where the message has no array
        self.lines.append(f" return {top}, p")
        return "\n".join(self.lines)

    def _new_name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    # Runs: consecutive values of fixed size become one unpacking.

    def _add_to_run(self, target: str, letter: str) -> None:
        self._run.append((target, letter))

    def _flush_run(self, indent: str) -> None:
        if not self._run:
            return
        letters = "".join(letter for _, letter in self._run)
        targets = "".join(f"{target}, " for target, _ in self._run)
        if letters == "B":
            self.lines.append(f"{indent}{self._run[0][0]} = b[p]; p += 1")
        else:
            name = "S" + letters.replace("?", "o")
            self.names[name] = Packing(">" + letters).unpack_from
            self.lines.append(f"{indent}{targets}= {name}(b, p); p += {calcsize('>' + letters)}")
        self._run.clear()

    # Structs.

    def _write_struct(self, cls: StructType, path: str, indent: str, items: str | None = None) -> str:
        """Text that decodes one struct; returns the variable that holds it. May leave a run to flush.

        `items`: the array to which it is added before its fields are read.
        """
        prepare_class(cls)
        out = self._new_name("o")
        self.names[f"C_{cls.__name__}"] = cls
        self.lines.append(f"{indent}{out} = new(C_{cls.__name__})")
        if items is not None:
            self.lines.append(f"{indent}{items}.append({out})")
        for field in self.scope.absent_fields(cls):
            self._write_default(cls, field, out, indent)
        for field in self.scope.plain_fields(cls):
            self._write_field(cls, field, f"{out}.{field.name}", f"{path}.{field.name}", indent)
        if self.scope.flexible:
            self._write_tags(cls, out, path, indent)
        return out

    def _write_default(self, cls: StructType, field: Field, out: str, indent: str) -> None:
        value = fresh_default(cls, field, self.names) or repr(field.default)
        if field.struct:
            prepare_class(struct_class(cls, field))
        self.lines.append(f"{indent}{out}.{field.name} = {value}")

    def _write_tags(self, cls: StructType, out: str, path: str, indent: str) -> None:
        count, tagged = self._new_name("t"), self.scope.tagged_fields(cls)
        self._add_to_run(count, "B")
        self._flush_run(indent)
        for field in tagged:
            self._write_default(cls, field, out, indent)
        if not tagged and not self.sliced:
            self.lines.append(f"{indent}if {count}: p = skip_tags(b, p - 1, end)")
            return
        tag, stop = f"{count}g", f"{count}e"
        weighed = f"left -= {count} // {TAGS_PER_ELEMENT}; " if self.sliced else ""
        self.lines += [
            f"{indent}if {count}:",
            f"{indent} {count}, p = read_tag_count(b, p - 1, end); {weighed}{tag} = -1",
            f"{indent} for _ in range({count}):",
            f"{indent}  {tag}, p, {stop} = read_tag(b, p, end, {tag})",
        ]
        for number, field in enumerate(tagged):
            self.lines.append(f"{indent}  {'elif' if number else 'if'} {tag} == {field.tag}:")
            self._write_field(cls, field, f"{out}.{field.name}", f"{path}.{field.name}", indent + "   ")
            self._flush_run(indent + "   ")
            self.lines.append(f"{indent}   if p != {stop}: fail('{path}.{field.name}', 'not of its tag\\'s size')")
        self.lines.append(f"{indent}  {'else: ' if tagged else ''}p = {stop}")

    # Fields.

    def _write_field(self, cls: StructType, field: Field, target: str, path: str, indent: str) -> None:
        kind, null = field.type, field.may_be_null(self.scope.version)
        if kind in NUMBERS:
            self._add_to_run(target, NUMBERS[kind])
        elif kind == "struct":
            self._write_nested(cls, field, target, path, indent)
        elif kind == "array":
            self._write_array(cls, field, target, path, indent)
        else:
            length = self._write_length(kind, indent)
            self._write_text(kind, target, length, null=null, path=path, indent=indent)

    def _write_length(self, kind: str, indent: str) -> str:
        """Text that reads a length; the variable is the length, or when flexible the length + 1."""
        name = self._new_name("n")
        if not self.scope.flexible:
            self._add_to_run(name, "h" if kind == "string" else "i")
            self._flush_run(indent)
            return name
        self._add_to_run(name, "B")
        self._flush_run(indent)
        reader = "read_string_length" if kind == "string" else "read_uvarint"
        self.lines.append(f"{indent}if {name} > 127: {name}, p = {reader}(b, p - 1)")
        return name

    def _write_text(self, kind: str, target: str, length: str, *, null: bool, path: str, indent: str) -> None:
        """Text that reads the bytes of a string, of bytes or of records."""
        last = f"{length} - 1" if self.scope.flexible else length
        read = f"e = p + {last}; {target} = {self._slice_expression(kind)}; p = e"
        if not null:
            wrong = f"not {length}" if self.scope.flexible else f"{length} < 0"
            self.lines.append(f"{indent}if {wrong}: fail({path!r}, {last})")
            self.lines.append(f"{indent}{read}")
        elif self.scope.flexible:
            self.lines.append(f"{indent}if {length}: {read}")
            self.lines.append(f"{indent}else: {target} = None")
        else:
            self.lines.append(f"{indent}if {length} >= 0: {read}")
            self.lines.append(f"{indent}elif {length} == -1: {target} = None")
            self.lines.append(f"{indent}else: fail({path!r}, {length})")

    def _slice_expression(self, kind: str) -> str:
        if kind == "string":
            return f"b[p:e].tobytes().{self.decode_text}" if self.view else f"b[p:e].{self.decode_text}"
        if kind == "bytes" and self.view:
            return "b[p:e].tobytes()"
        return "b[p:e]"

    def _write_nested(self, cls: StructType, field: Field, target: str, path: str, indent: str) -> None:
        inner = struct_class(cls, field)
        if not field.may_be_null(self.scope.version):
            self.lines.append(f"{indent}{target} = {self._write_struct(inner, path, indent)}")
            return
        present = self._new_name("n")
        self._add_to_run(present, "b")
        self._flush_run(indent)
        null = "== 0" if field.tag is not None else "< 0"  # a tagged struct is marked 0 or 1, others -1 or 1
        self.lines.append(f"{indent}if {present} {null}: {target} = None")
        self.lines.append(f"{indent}else:")
        self.lines.append(f"{indent} {target} = {self._write_struct(inner, path, indent + ' ')}")
        self._flush_run(indent + " ")

    # Arrays.

    def _write_array(self, cls: StructType, field: Field, target: str, path: str, indent: str) -> None:
        count = self._write_length("array", indent)
        if self.scope.flexible:
            self.lines.append(f"{indent}{count} -= 1")
        least = self.scope.least_element(cls, field)
        assert least > 0, f"{cls.__qualname__}.{field.name} has elements without bytes"
        wrong = f"{count} < 0 or {count} > {field.most} or {count} * {least} > end - p"
        if field.may_be_null(self.scope.version):
            self.lines.append(f"{indent}if {count} == -1: {target} = None")
            self.lines.append(f"{indent}elif {wrong}: fail({path!r}, {count})")
            self.lines.append(f"{indent}else:")
            indent += " "
        else:
            self.lines.append(f"{indent}if {wrong}: fail({path!r}, {count})")
        if self.amplification:
            self.lines.append(f"{indent}room -= {count} * {self.scope.element_memory(cls, field)}")
            self.lines.append(f"{indent}if room < 0: fail({path!r}, 'too many small elements')")
        self._write_elements(cls, field, target, count, path, indent)

    def _write_elements(self, cls: StructType, field: Field, target: str, count: str, path: str, indent: str) -> None:
        if field.of not in NUMBERS and field.of != "uuid":
            self._write_loop(cls, field, target, count, path, indent)
        elif self.sliced:
            self._write_numbers_in_slices(field, target, count, indent)
        else:
            self._write_numbers(field, target, count, indent)

    def _write_numbers(self, field: Field, target: str, count: str, indent: str) -> None:
        """Text that decodes `count` numbers or uuids into a list."""
        if field.of == "uuid":
            piece = "b[i:i + 16].tobytes()" if self.view else "b[i:i + 16]"
            self.lines.append(f"{indent}e = p + {count} * 16; {target} = [{piece} for i in range(p, e, 16)]; p = e")
        else:
            self.names["unpack_from"] = _unpack_many
            letter = NUMBERS[field.of]
            size = calcsize(">" + letter)
            self.lines.append(f"{indent}{target} = unpack_from(f'>{{{count}}}{letter}', b, p); p += {count} * {size}")

    def _write_numbers_in_slices(self, field: Field, target: str, count: str, indent: str) -> None:
        items, inside = self._new_name("a"), indent + " "
        lot = SLICE * NUMBERS_PER_ELEMENT // 4
        self.lines.append(f"{indent}{items} = {target} = []")
        self.lines.append(f"{indent}while {count}:")
        self.lines.append(f"{inside}n = min({count}, {lot}); {count} -= n; left -= n // {NUMBERS_PER_ELEMENT}")
        self._write_numbers(field, "some", "n", inside)
        self.lines.append(f"{inside}{items} += some")
        self._write_end_of_slice(self._depth + 1, inside)

    def _write_end_of_slice(self, depth: int, indent: str) -> None:
        # An element that costs several slices yields as often: each yield stands for the same time.
        ended = f"left = min(left + {SLICE}, {SLICE}); most = p + {SLICE_BYTES}; yield {_TOP}, {depth}"
        self.lines.append(f"{indent}while left <= 0 or p > most: {ended}")

    def _write_loop(self, cls: StructType, field: Field, target: str, count: str, path: str, indent: str) -> None:
        items, inside = self._new_name("a"), indent + " "
        self.lines.append(f"{indent}{items} = {target} = []")
        self.lines.append(f"{indent}for _ in range({count}):")
        self._depth += 1
        if field.of == "struct":
            item = self._write_struct(struct_class(cls, field), path, inside, items if self.sliced else None)
        else:
            item = self._new_name("x")
            length = self._write_length(field.of, inside)
            self._write_text(field.of, item, length, null=False, path=path, indent=inside)
        self._depth -= 1
        self._flush_run(inside)
        if not self.sliced or field.of != "struct":
            self.lines.append(f"{inside}{items}.append({item})")
        if self.sliced:
            self.lines.append(f"{inside}left -= 1")
            self._write_end_of_slice(self._depth, inside)


def _unpack_many(layout: str, buffer: primitives.Buffer, pos: int) -> list[int]:
    return list(unpack_from(layout, buffer, pos))
