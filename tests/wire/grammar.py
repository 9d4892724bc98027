"""Random messages that are valid for their (message, version), and mutations of bytes: for property tests and fuzzing.

Everything is drawn from the `random.Random` it is given, so a seed (or hypothesis) replays it.
"""

from __future__ import annotations

import random
from typing import Any

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
CLAIMS = (b"\xff", b"\x80", b"\x7f", b"\x00", b"\xff\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff",
          b"\x80\x00\x00\x00", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff", b"\x80\x80\x80\x80\x80\x01",
          b"\x40\x00\x00\x00", b"\xff\xfe", b"\xff\xff\xff\xfe", b"\xc0\x84\x3d")  # fmt: skip
"""Bytes that claim lengths: null, huge, negative, varints of every size."""


def message(rng: random.Random, cls: type[Message], version: int, *, modest: bool = False) -> Any:
    """A random message with values in every field that the version has, all others at their defaults.

    `modest`: numbers that any reading of them (error code, duration, date) accepts.
    """
    return _struct(rng, cls, version, modest)


def _struct(rng: random.Random, cls: StructType, version: int, modest: bool) -> Struct:
    out: Struct = cls()
    for field in cls.FIELDS:
        is_own = field.tag is not None and field.tag >= OWN_TAG  # other implementations know nothing of it
        if field.exists(version) and not (modest and is_own):
            setattr(out, field.name, _value(rng, cls, field, version, modest))
    return out


def _value(rng: random.Random, cls: StructType, field: Field, version: int, modest: bool) -> Any:
    if field.may_be_null(version) and rng.random() < 0.25:
        return None
    if field.type == "array":
        count = rng.choice((0, 1, 1, 2, 3))
        return [_single(rng, cls, field, field.of, version, modest) for _ in range(count)]
    return _single(rng, cls, field, field.type, version, modest)


def _single(rng: random.Random, cls: StructType, field: Field, kind: str, version: int, modest: bool) -> Any:
    if kind == "struct":
        return _struct(rng, struct_class(cls, field), version, modest)
    if kind == "string":
        return rng.choice(TEXTS[:4] if modest else TEXTS)
    if kind in {"bytes", "records"}:
        return rng.randbytes(rng.choice((0, 1, 5, 130)))
    if kind == "uuid":
        return rng.randbytes(16)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.choice((0.0, -1.5, 1e300, 42.0))
    return _number(rng, WIDTH[kind], kind == "uint16", modest)


def _number(rng: random.Random, bits: int, unsigned: bool, modest: bool) -> int:
    if modest:
        return rng.randrange(0, 100)
    if unsigned:
        return rng.choice((0, 1, 9092, 65535))
    top = 1 << (bits - 1)
    return rng.choice((-top, -1, 0, 1, 77, top - 1, rng.randrange(-top, top)))


def request_frame(rng: random.Random, key: int | None = None, version: int | None = None) -> bytes:
    """A whole random request without its length prefix: header and body."""
    api = API_TABLE[rng.choice(sorted(API_TABLE)) if key is None else key]
    chosen = rng.randint(api.min_version, api.max_version) if version is None else version
    client = rng.choice((None, "", "console", "é" * 40))
    header = encode_request_header(api.key, chosen, rng.randrange(-(2**31), 2**31), client)
    return header + encode_bytes(message(rng, api.request, chosen), chosen)


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
