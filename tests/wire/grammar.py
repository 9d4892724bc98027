"""Random messages that are valid for their (message, version), and mutations of bytes: for property tests and fuzzing.

Everything is drawn from the `random.Random` it is given, so a seed (or hypothesis) replays it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ottla.wire import messages
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.schema import OWN_TAG, Field, Message, Struct, StructType, struct_class

ALL: list[type[Message]] = [getattr(messages, name) for name in messages.__all__]
"""Every declared message."""
EVERY = [(cls, version) for cls in ALL for version in cls.VERSIONS]
"""Every declared (message, version)."""

WIDTH = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "int64": 64}
TEXTS = ("", "a", "topic-7", "é", "漢字", "𝄞", "a" * 127, "b" * 128, "c" * 300)
LONGEST = ("x" * 32_767, "é" * 16_383 + "a", "y" * 32_768, "z" * 65_536)
"""As long as a string may be, and longer: the last two fit flexible versions only, and are refused."""
LONG, DOUBLED, KNOWN = 0.01, 0.05, 0.6
"""How often an extreme style takes a text of these, repeats the elements of an array; takes what the broker knows."""
HUGE = 10_000
"""Repetitions of a number in an array."""
CLAIMS = (b"\xff", b"\x80", b"\x7f", b"\x00", b"\xff\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff",
          b"\x80\x00\x00\x00", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff", b"\x80\x80\x80\x80\x80\x01",
          b"\x40\x00\x00\x00", b"\xff\xfe", b"\xff\xff\xff\xfe", b"\xc0\x84\x3d")  # fmt: skip
"""Bytes that claim lengths: null, huge, negative, varints of every size."""


class Style(NamedTuple):
    """Which values are drawn."""

    modest: bool = False
    """Numbers that any reading of them (error code, duration, date) accepts, and short texts."""
    extreme: bool = False
    """Now and then the longest texts, the largest and the doubled arrays, and mostly the ends of numbers."""
    known: Callable[[random.Random, str], Any] | None = None
    """For a field's name a value that means something to the broker that is asked; None: it knows none."""


ORDINARY: Final = Style()


def message(rng: random.Random, cls: type[Message], version: int, *, modest: bool = False) -> Any:
    """A random message with values in every field that the version has, all others at their defaults."""
    return styled(rng, cls, version, Style(modest=modest))


def styled(rng: random.Random, cls: type[Message], version: int, style: Style) -> Any:
    """A random message in that style."""
    return _struct(rng, cls, version, style)


def _struct(rng: random.Random, cls: StructType, version: int, style: Style) -> Struct:
    out: Struct = cls()
    for field in cls.FIELDS:
        is_own = field.tag is not None and field.tag >= OWN_TAG  # other implementations know nothing of it
        if field.exists_in(version) and not (style.modest and is_own):
            setattr(out, field.name, _value(rng, cls, field, version, style))
    return out


def _value(rng: random.Random, cls: StructType, field: Field, version: int, style: Style) -> Any:
    if field.may_be_null(version) and rng.random() < 0.25:
        return None
    if field.type == "array":
        return _array(rng, cls, field, version, style)
    return _single(rng, cls, field, field.type, version, style)


def _array(rng: random.Random, cls: StructType, field: Field, version: int, style: Style) -> list[Any]:
    many = [_single(rng, cls, field, field.of, version, style) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))]
    if style.extreme and many and rng.random() < DOUBLED:
        return many * rng.choice((2, 2, 2, 10, HUGE if field.of in WIDTH else 100))
    return many


def _single(rng: random.Random, cls: StructType, field: Field, kind: str, version: int, style: Style) -> Any:
    if style.known is not None and rng.random() < KNOWN:
        known = style.known(rng, field.name)
        if _fits(known, kind):
            return known
    if kind == "struct":
        return _struct(rng, struct_class(cls, field), version, style)
    if kind == "string":
        return _text(rng, style)
    if kind in {"bytes", "records"}:
        return rng.randbytes(rng.choice((0, 1, 5, 130)))
    if kind == "uuid":
        return rng.randbytes(16)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice(
            (0.0, -1.5, 1e300, 42.0, float("nan"), float("inf")) if style.extreme else (0.0, -1.5, 1e300, 42.0)
        )
    return _number(rng, WIDTH[kind], kind == "uint16", style.modest)


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, str):
        return kind == "string"
    if isinstance(value, bytes):
        return kind == "uuid"
    return isinstance(value, int) and kind in WIDTH and -1 <= value < 1 << (WIDTH[kind] - 1)


def _text(rng: random.Random, style: Style) -> str:
    if style.extreme and rng.random() < LONG:
        return rng.choice(LONGEST)
    return rng.choice(TEXTS[:4] if style.modest else TEXTS)


def _number(rng: random.Random, bits: int, unsigned: bool, modest: bool) -> int:
    if modest:
        return rng.randrange(0, 100)
    if unsigned:
        return rng.choice((0, 1, 9092, 65535))
    top = 1 << (bits - 1)
    return rng.choice((-top, -1, 0, 1, 77, top - 1, rng.randrange(-top, top)))


def request_frame(
    rng: random.Random, key: int | None = None, version: int | None = None, style: Style = ORDINARY
) -> bytes:
    """A whole random request without its length prefix: header and body."""
    api = API_TABLE[rng.choice(sorted(API_TABLE)) if key is None else key]
    chosen = rng.randint(api.min_version, api.max_version) if version is None else version
    client = rng.choice(
        (None, "", "console", "é" * 40, *(LONGEST[:2] if rng.random() < LONG and style.extreme else ()))
    )
    header = encode_request_header(api.key, chosen, rng.randrange(-(2**31), 2**31), client)
    while True:
        try:
            return header + encode_bytes(styled(rng, api.request, chosen, style), chosen)
        except struct.error:  # a text too long for this version
            continue


def mutate(rng: random.Random, data: bytes) -> bytes:
    """The bytes with one to four wrongs: flipped, cut, claimed, doubled, dropped, inserted."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        _MUTATIONS[rng.randrange(len(_MUTATIONS))](rng, out)
    return bytes(out)


def _flip(rng: random.Random, out: bytearray) -> None:
    if out:
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)


def _cut(rng: random.Random, out: bytearray) -> None:
    del out[rng.randrange(len(out) + 1) :]


def _claim(rng: random.Random, out: bytearray) -> None:
    at, claim = rng.randrange(len(out) + 1), rng.choice(CLAIMS)
    out[at : at + len(claim)] = claim


def _double(rng: random.Random, out: bytearray) -> None:
    at = rng.randrange(len(out) + 1)
    out[at:at] = out[at : at + rng.randrange(64)]


def _drop(rng: random.Random, out: bytearray) -> None:
    at = rng.randrange(len(out) + 1)
    del out[at : at + rng.randrange(1, 9)]


def _insert(rng: random.Random, out: bytearray) -> None:
    at = rng.randrange(len(out) + 1)
    out[at:at] = rng.randbytes(rng.randrange(1, 9))


_MUTATIONS = (_flip, _cut, _claim, _double, _drop, _insert)
