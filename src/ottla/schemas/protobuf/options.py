"""Options of files, messages, fields and all others: `name = value`.

Zone: pure. An option that Protobuf defines is set; one that an extension defines is kept as it is written, with a value
that is not checked.
Source: the Protobuf language specification, "Option".
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from ottla.schemas.protobuf.tokens import Tokens, parse_integer

_INTEGERS: Final = {
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
}
_BRACES: Final = {"{": "}", "[": "]", "<": ">"}


class _Constant(NamedTuple):
    """The value of an option."""

    kind: str
    """`name`, `int`, `float`, `string` or `aggregate`."""
    value: Any
    """A text, a number, or the text between the braces of an aggregate."""


class _Part(NamedTuple):
    """A part of an option's name."""

    name: str
    is_extension: bool


def read_option(tokens: Tokens, options: Any) -> None:
    """Read `name = value` into an options message. Raises InvalidSchema."""
    _set_option(tokens, options, _read_name(tokens))


def read_bracket(tokens: Tokens, owner: Any) -> None:
    """Read `[name = value, …]`, if it is there, into the options of a field, value or range. Raises InvalidSchema."""
    if not tokens.accept_sign("["):
        return
    is_field = "json_name" in owner.DESCRIPTOR.fields_by_name
    while True:
        parts = _read_name(tokens)
        if is_field and parts == [_Part("default", is_extension=False)]:
            _read_default(tokens, owner)
        elif is_field and parts == [_Part("json_name", is_extension=False)]:
            tokens.expect_sign("=")
            owner.json_name = tokens.take_string()
        else:
            _set_option(tokens, owner.options, parts)
        if not tokens.accept_sign(","):
            tokens.expect_sign("]")
            return


def _read_name(tokens: Tokens) -> list[_Part]:
    parts: list[_Part] = []
    while not parts or tokens.accept_sign("."):
        if tokens.accept_sign("("):
            parts.append(_Part(tokens.take_full_name("the name of an option"), is_extension=True))
            tokens.expect_sign(")")
        else:
            parts.append(_Part(tokens.take_name("the name of an option"), is_extension=False))
        if len(parts) > 100:
            tokens.refuse_text("the name of an option has more than 100 parts")
    return parts


def _set_option(tokens: Tokens, options: Any, parts: list[_Part]) -> None:
    """Read `= value` into the option of this name."""
    tokens.expect_sign("=")
    constant = _read_constant(tokens)
    field = None if parts[0].is_extension or len(parts) > 1 else options.DESCRIPTOR.fields_by_name.get(parts[0].name)
    if field is None or field.message_type is not None:
        _keep_uninterpreted(options, parts, constant)
        return
    if field.name == "map_entry":
        tokens.refuse_text("the option map_entry is not for texts: use a field of type map<…, …>")
    value = _value_for(field, constant)
    if value is None:
        tokens.refuse_text(f"{constant.value!r:.40} is not a value of the option {field.name}")
    if hasattr(getattr(options, field.name), "append"):
        getattr(options, field.name).append(value)
    else:
        setattr(options, field.name, value)


def _read_constant(tokens: Tokens) -> _Constant:
    if tokens.kind == "string":
        return _Constant("string", tokens.take_string())
    if tokens.is_sign("{"):
        return _Constant("aggregate", _read_aggregate(tokens))
    negative = tokens.accept_sign("-")
    if tokens.kind == "int":
        number = parse_integer(tokens.value)
        if number is None:
            return _read_float(tokens, negative=negative)
        tokens.take_token()
        return _Constant("int", -number if negative else number)
    if tokens.kind == "float" or (negative and tokens.is_sign("inf", "nan")):
        return _read_float(tokens, negative=negative)
    if negative or tokens.kind != "name":
        tokens.refuse_token("a value")
    return _Constant("name", tokens.take_name())


def _read_float(tokens: Tokens, *, negative: bool) -> _Constant:
    try:
        number = float(tokens.value)
    except ValueError:
        tokens.refuse_token("a number")
    tokens.take_token()
    return _Constant("float", -number if negative else number)


def _read_aggregate(tokens: Tokens) -> str:
    """The tokens between two braces, which may contain others."""
    tokens.expect_sign("{")
    parts, open_braces = list[str](), ["}"]
    while True:
        if tokens.kind == "end":
            tokens.refuse_token(repr(open_braces[-1]))
        if tokens.kind == "sign" and tokens.value in _BRACES:
            open_braces.append(_BRACES[tokens.value])
        elif tokens.kind == "sign" and tokens.value == open_braces[-1]:
            open_braces.pop()
            if not open_braces:
                tokens.take_token()
                return " ".join(parts)
        elif tokens.is_sign("}", "]", ">"):
            tokens.refuse_token(repr(open_braces[-1]))
        parts.append(tokens.take_token())


def _value_for(field: Any, constant: _Constant) -> Any:
    """The value of a known option; None: it has another type."""
    kind, value = constant
    if field.enum_type is not None:
        found = field.enum_type.values_by_name.get(value) if kind == "name" else None
        return None if found is None else found.number
    wanted = _TYPES[field.type]
    if wanted == "bool":
        return {"true": True, "false": False}.get(value) if kind == "name" else None
    if wanted == "string":
        return value if kind == "string" else None
    return value if kind == "int" and wanted in _INTEGERS and -(2**31) <= value < 2**31 else None


def _keep_uninterpreted(options: Any, parts: list[_Part], constant: _Constant) -> None:
    kept = options.uninterpreted_option.add()
    for part in parts:
        kept.name.add(name_part=part.name, is_extension=part.is_extension)
    kind, value = constant
    if kind == "string":
        kept.string_value = value.encode("utf-8", "surrogatepass")
    elif kind == "int":
        setattr(kept, "negative_int_value" if value < 0 else "positive_int_value", value)
    elif kind == "float":
        kept.double_value = value
    else:
        setattr(kept, "identifier_value" if kind == "name" else "aggregate_value", value)


# -- defaults ----------------------------------------------------------------------------------------------------------

TYPE_NUMBERS: Final = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip
"""Names of scalar types → their numbers in FieldDescriptorProto.Type."""
GROUP, MESSAGE, ENUM = 10, 11, 14
_TYPES: Final = {number: name for name, number in TYPE_NUMBERS.items()}


def _read_default(tokens: Tokens, field: Any) -> None:
    """Read `= value` as the default of a field, in the form in which a descriptor has it."""
    tokens.expect_sign("=")
    if field.HasField("default_value"):
        tokens.refuse_text(f"the field {field.name} has two defaults")
    constant = _read_constant(tokens)
    text = _default_text(_TYPES.get(field.type, "") if field.HasField("type") else "", constant)
    if text is None:
        tokens.refuse_text(f"{constant.value!r:.40} is not a default of the field {field.name}")
    field.default_value = text


def _default_text(wanted: str, constant: _Constant) -> str | None:
    kind, value = constant
    if wanted in ("float", "double"):
        return _float_text(kind, value)
    if wanted == "bool":
        return str(value) if kind == "name" and value in ("true", "false") else None
    if wanted in ("string", "bytes"):
        if kind != "string":
            return None
        return str(value) if wanted == "string" else _escape_bytes(value)
    if wanted in _INTEGERS:
        return str(value) if kind == "int" and _fits(wanted, value) else None
    return str(value) if kind == "name" and not wanted else None


def _float_text(kind: str, value: Any) -> str | None:
    if kind == "name":
        return str(value) if value in ("inf", "nan") else None
    if kind not in ("int", "float"):
        return None
    number = float(value)
    if math.isinf(number) or math.isnan(number):
        return str(number)
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def _fits(wanted: str, value: int) -> bool:
    bits = 64 if "64" in wanted else 32
    return 0 <= value < (1 << bits) if wanted[0] in "uf" else -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def _escape_bytes(text: str) -> str:
    """Characters below 256 as bytes, others as UTF-8, with the escapes of C."""
    content = b"".join(bytes((ord(each),)) if ord(each) < 256 else each.encode() for each in text)
    escapes = {0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x22: '\\"', 0x27: "\\'", 0x5C: "\\\\"}
    return "".join(escapes.get(each) or (chr(each) if 32 <= each < 127 else f"\\{each:03o}") for each in content)
