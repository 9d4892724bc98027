"""Encodes and decodes messages: compiles a declaration once per version, then calls straight-line code.

Zone: pure. The interface of the compiled codec; `decoding` and `encoding` generate the source.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from functools import cache
from typing import Any, TypeVar, cast

from ottla.seams import Part, Region
from ottla.wire.decoding import DecoderSource
from ottla.wire.encoding import EncoderSource
from ottla.wire.errors import MalformedMessage, UnknownVersion
from ottla.wire.layout import Scope
from ottla.wire.limits import AMPLIFICATION, BROKER_AMPLIFICATION
from ottla.wire.primitives import Buffer
from ottla.wire.schema import Decoder, Encoder, Message, SlicedDecoder, StructType

M = TypeVar("M", bound=Message)


def decode(cls: type[M], version: int, view: Buffer, pos: int = 0) -> tuple[M, int]:
    """Decode one message that starts at `pos`: (message, position after it).

    Record data is a slice of `view`; all other fields are copied. The caller checks whether bytes are left over.
    Raises MalformedMessage; UnknownVersion when the message has no such version.
    """
    decoder = cls.DECODERS.get(version) or _compile_decoder(cls, version)
    # Slices of bytes are copies, those of a view are not: only a message with records may refer to its frame.
    buffer = memoryview(view) if cls.HAS_RECORDS else bytes(view)
    end = len(buffer)
    try:
        try:
            message, pos = decoder(buffer, pos, end)
        except UnicodeDecodeError:
            message = None  # leaving the `except` frees the partial message before the second attempt
        if message is None:
            message, pos = _odd_decoder(cls, version)(buffer, pos, end)
    except (IndexError, struct.error) as error:
        raise MalformedMessage(f"{cls.__name__} v{version}: cut short") from error
    if pos > end:
        raise MalformedMessage(f"{cls.__name__} v{version}: {pos - end} bytes short")
    return message, pos


def decode_sliced(cls: type[M], version: int, view: Buffer, pos: int = 0) -> Generator[tuple[M, int], None, M]:
    """Decode one large message in slices: yields it, unfinished, after every slice, and returns it.

    A slice is SLICE elements, or SLICE_BYTES. With it, yields the number of nested arrays that end in an unfinished
    element.

    The buffer must not change until the end. Raises as `decode` does, at the step that meets the error.
    """
    decoder = cls.SLICED.get(version) or _compile_sliced(cls, version)
    end = len(view)
    try:
        message, pos = yield from decoder(memoryview(view), pos, end)
    except (IndexError, struct.error) as error:
        raise MalformedMessage(f"{cls.__name__} v{version}: cut short") from error
    if pos > end:
        raise MalformedMessage(f"{cls.__name__} v{version}: {pos - end} bytes short")
    return cast("M", message)


def encode(message: Message, version: int) -> list[Part]:
    """Encode a message, without header and length prefix, into few parts: record data is not copied.

    Raises UnknownVersion; FieldNotInVersion for a request that would lose a value in this version; struct.error or
    TypeError for values outside their type (a programmer's error).
    """
    encoder = message.ENCODERS.get(version) or _compile_encoder(type(message), version)
    parts: list[Part] = []
    pieces: list[bytes] = []
    try:
        encoder(message, parts, pieces, pieces.append)
    except UnicodeEncodeError:  # encode again with the slower encoder for text that is not UTF-8
        parts.clear()
        pieces.clear()
        _odd_encoder(type(message), version)(message, parts, pieces, pieces.append)
    if pieces or not parts:
        parts.append(b"".join(pieces))
    return parts


def encode_bytes(message: Message, version: int) -> bytes:
    """Encode a message without a Region into one piece."""
    return b"".join(_in_memory(part) for part in encode(message, version))


def warm_codec(cls: type[Message], version: int, *, decoder: bool = True, encoder: bool = True) -> None:
    """Compile ahead of use, at start or in idle time, so that no request waits for it (about a millisecond each)."""
    if decoder and version not in cls.DECODERS:
        _compile_decoder(cls, version)
    if encoder and version not in cls.ENCODERS:
        _compile_encoder(cls, version)


def _in_memory(part: Part) -> Buffer:
    assert not isinstance(part, Region), "a Region has no bytes before it is sent"
    return part


def _scope_of(cls: type[Message], version: int) -> Scope:
    if version not in cls.VERSIONS:
        raise UnknownVersion(f"{cls.__name__} has no version {version}")
    return Scope(version, version in cls.FLEXIBLE)


def _amplification_of(cls: type[Message]) -> int:
    if not cls.__name__.endswith("Request"):
        return 0  # a response, or a record of Ottla's own: its sender is trusted
    return BROKER_AMPLIFICATION if cls.BETWEEN_BROKERS else AMPLIFICATION


def _compile_decoder(cls: type[Message], version: int) -> Decoder:
    source = DecoderSource(_scope_of(cls, version), view=cls.HAS_RECORDS, amplification=_amplification_of(cls))
    decoder: Decoder = _define_function("decode", source.function(cls), source.names, cls, version)
    cls.DECODERS[version] = decoder
    return decoder


def _compile_sliced(cls: type[Message], version: int) -> SlicedDecoder:
    source = DecoderSource(
        _scope_of(cls, version), view=True, amplification=_amplification_of(cls), odd_text=True, sliced=True
    )
    decoder: SlicedDecoder = _define_function("decode", source.function(cls), source.names, cls, version)
    cls.SLICED[version] = decoder
    return decoder


def compile_portion(owner: type[Message], version: int, cls: StructType, array: str, portion: str) -> Encoder:
    """The encoder of a part of a struct in a message: "head" or "tail" around an array, or "function" for all of it."""
    source = EncoderSource(_scope_of(owner, version), strict=False, odd_text=True)
    text = source.function(cls) if portion == "function" else getattr(source, portion)(cls, array)
    encoder: Encoder = _define_function("encode", text, source.names, owner, version)
    return encoder


def _compile_encoder(cls: type[Message], version: int) -> Encoder:
    source = EncoderSource(_scope_of(cls, version), strict=cls.__name__.endswith("Request"))
    encoder: Encoder = _define_function("encode", source.function(cls), source.names, cls, version)
    cls.ENCODERS[version] = encoder
    return encoder


@cache
def _odd_decoder(cls: type[Message], version: int) -> Decoder:
    """A decoder that accepts text that is not UTF-8. It is separate so that the usual decoders stay fast."""
    amplification = _amplification_of(cls)
    source = DecoderSource(_scope_of(cls, version), view=cls.HAS_RECORDS, amplification=amplification, odd_text=True)
    decoder: Decoder = _define_function("decode", source.function(cls), source.names, cls, version)
    return decoder


@cache
def _odd_encoder(cls: type[Message], version: int) -> Encoder:
    source = EncoderSource(_scope_of(cls, version), strict=cls.__name__.endswith("Request"), odd_text=True)
    encoder: Encoder = _define_function("encode", source.function(cls), source.names, cls, version)
    return encoder


def _define_function(name: str, text: str, names: dict[str, object], cls: type[Message], version: int) -> Any:
    """Compile and run the source of one function; its file name identifies the codec in tracebacks."""
    exec(compile(text, f"<{cls.__name__} v{version} {name}>", "exec"), names)  # noqa: S102  # the text is generated, not input
    return names[name]
