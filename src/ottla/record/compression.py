"""The five codecs of record batches, each bounded while it decompresses.

Zone: pure. Bytes to bytes; `batch` and `legacy` know which part of a batch is compressed.

A few bytes can expand to gigabytes, so output grows in steps and stops with CorruptRecord at `max_bytes`; a size that
the input *declares* is trusted only below that. The codec libraries are imported at first use, because a broker
that stores what producers compressed may never need them.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from struct import Struct
from typing import Final

from ottla.record.crc import Buffer
from ottla.record.errors import CorruptRecord, ExpandsTooFar


class Codec(IntEnum):
    """The codec numbers in a batch's attributes, bits 0 to 2."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names by number, as `compression.type` has them."""

_STEP = 1 << 18
_ZSTD_WINDOW_MAX = 1 << 27
"""The largest window that zstd's own tools accept by default; Java's binding has the same bound."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
"""Magic numbers of frames for readers of their own, which decoders skip (RFC 8878, 3.1.2)."""
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = Struct(">8sii")
_XERIAL_BLOCK = 32 * 1024
_LENGTH = Struct(">i")
_LZ4_DEFAULT_LEVEL = 9


_RATIOS: Final = (1, 1032, 22, 255, 1 << 15)
"""The most bytes that one byte can expand to: the limits of deflate, of a copy in snappy and of a length byte in LZ4; a
run-length block of zstd has 4 bytes and expands to 128 KiB."""


def most_expanded(codec: int, size: int) -> int:
    """The most bytes that any `size` bytes can expand to in a codec that exists."""
    return _RATIOS[codec] * size


def codec_number(name: str) -> int:
    """The number of the codec `name`. Raises ValueError for an unknown name."""
    return CODEC_NAMES.index(name)


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` compressed as Java's client does it. `level` is that of `compression.<codec>.level`, None its default.

    gzip -1…9 (default -1), lz4 1…17 (9: the fast compressor, any other level the high one), zstd -131072…22 (3);
    none and snappy have no levels. Raises ValueError for an unknown codec or level.
    """
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return _compress_gzip(data, -1 if level is None else level)
    if codec == Codec.SNAPPY:
        return _compress_xerial(data)
    if codec == Codec.LZ4:
        return _compress_lz4(data, _LZ4_DEFAULT_LEVEL if level is None else level)
    if codec == Codec.ZSTD:
        return _compress_zstd(data, 3 if level is None else level)
    raise ValueError(f"there is no codec {codec}")


def decompress(codec: int, data: Buffer, max_bytes: int) -> bytes:
    """The bytes that were compressed, at most `max_bytes` of them.

    Raises CorruptRecord for an unknown codec, broken or cut input, and input that expands beyond `max_bytes`.
    """
    if codec == Codec.NONE:
        return _check_size(bytes(data), max_bytes)
    if codec == Codec.GZIP:
        return _decompress_gzip(data, max_bytes)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if codec == Codec.LZ4:
        return _decompress_lz4(data, max_bytes)
    if codec == Codec.ZSTD:
        return _decompress_zstd(data, max_bytes)
    raise CorruptRecord(f"there is no codec {codec}")


def _check_size(data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return data


def _too_large(max_bytes: int) -> CorruptRecord:
    return ExpandsTooFar(f"the records expand to more than {max_bytes} bytes")


def _compress_gzip(data: Buffer, level: int) -> bytes:
    if not -1 <= level <= 9:
        raise ValueError(f"gzip has levels -1 to 9, not {level}")
    machine = zlib.compressobj(level, zlib.DEFLATED, 31)
    return machine.compress(data) + machine.flush()


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    """All members of a gzip stream (RFC 1952 allows several).

    Zeros after a member are padding; other bytes that do not begin another member are ignored, as in Java.
    """
    out = bytearray()
    rest: Buffer = data
    while True:
        # 16 for the header of gzip, and 15 for the largest window.
        machine = zlib.decompressobj(31)
        try:
            # One byte more than allowed, so that a longer output is noticed. 0 would mean no limit.
            out += machine.decompress(rest, max_bytes + 1 - len(out))
        except zlib.error as error:
            raise CorruptRecord(f"gzip: {error}") from error
        if len(out) > max_bytes:
            raise _too_large(max_bytes)
        if not machine.eof:
            raise CorruptRecord("gzip: the stream is cut short")
        rest = machine.unused_data.lstrip(b"\0")
        if not rest.startswith(_GZIP_MAGIC):
            return bytes(out)


def _compress_xerial(data: Buffer) -> bytes:
    """The framing of snappy-java: a 16-byte header, then blocks of at most 32 KiB, each with its length before it."""
    import cramjam  # noqa: PLC0415  see the head of this file

    # Version 1 of the framing, readable by decoders of version 1.
    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1)]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    """Either framing: xerial's (Java) or one raw block (librdkafka and others)."""
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _snappy_block(data, max_bytes)
    if len(data) < _XERIAL_HEADER.size:
        raise CorruptRecord("snappy: the header is cut short")
    out = bytearray()
    pos = _XERIAL_HEADER.size
    while pos < len(data):
        size, pos = _xerial_length(data, pos)
        out += _snappy_block(data[pos : pos + size], max_bytes - len(out))
        pos += size
    return bytes(out)


def _xerial_length(data: Buffer, pos: int) -> tuple[int, int]:
    if len(data) - pos < 4:
        raise CorruptRecord("snappy: a block's length is cut short")
    size = _LENGTH.unpack_from(data, pos)[0]
    if not 0 < size <= len(data) - pos - 4:
        raise CorruptRecord(f"snappy: a block of {size} bytes where {len(data) - pos - 4} are left")
    return size, pos + 4


def _snappy_block(block: Buffer, max_bytes: int) -> bytes:
    import cramjam  # noqa: PLC0415  see the head of this file

    declared = _snappy_declared_size(block)
    if declared > max_bytes:
        raise _too_large(max_bytes)
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptRecord(f"snappy: {error}") from error


def _snappy_declared_size(block: Buffer) -> int:
    """A raw block begins with its expanded size as an unsigned varint of at most 32 bits."""
    size = 0
    for i in range(min(5, len(block))):
        size |= (block[i] & 0x7F) << (7 * i)
        if block[i] < 0x80:
            return size
    raise CorruptRecord("snappy: a block does not begin with its size")


def _compress_lz4(data: Buffer, level: int) -> bytes:
    """An LZ4 frame of independent 64 KiB blocks: Java's client reads no other kind."""
    import lz4.frame  # noqa: PLC0415  see the head of this file

    if not 1 <= level <= 17:
        raise ValueError(f"lz4 has levels 1 to 17, not {level}")
    return bytes(
        lz4.frame.compress(
            data,
            compression_level=0 if level == _LZ4_DEFAULT_LEVEL else max(3, level),
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            content_checksum=False,
            store_size=False,
        )
    )


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    import lz4.frame  # noqa: PLC0415  see the head of this file

    machine = lz4.frame.LZ4FrameDecompressor()
    out = bytearray()
    rest: Buffer = data
    try:
        while not machine.eof:
            piece = machine.decompress(rest, max_length=min(_STEP, max_bytes + 1 - len(out)))
            rest = b""
            out += piece
            if len(out) > max_bytes:
                raise _too_large(max_bytes)
            # All input was passed in the first call, so a decompressor that needs more has a cut frame.
            if not piece and machine.needs_input and not machine.eof:
                raise CorruptRecord("lz4: the frame is cut short")
    except RuntimeError as error:
        raise CorruptRecord(f"lz4: {error}") from error
    if machine.unused_data:
        raise CorruptRecord(f"lz4: {len(machine.unused_data)} bytes after the frame")
    return bytes(out)


def _compress_zstd(data: Buffer, level: int) -> bytes:
    import zstandard  # noqa: PLC0415  see the head of this file

    if not -131072 <= level <= 22:
        raise ValueError(f"zstd has levels -131072 to 22, not {level}")
    return zstandard.ZstdCompressor(level=level).compress(data)


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    import zstandard  # noqa: PLC0415  see the head of this file

    machine = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    out = bytearray()
    try:
        with machine.stream_reader(_zstd_frames(data), read_across_frames=True) as reader:
            while piece := reader.read(min(_STEP, max_bytes + 1 - len(out))):
                out += piece
                if len(out) > max_bytes:
                    raise _too_large(max_bytes)
    except zstandard.ZstdError as error:
        raise CorruptRecord(f"zstd: {error}") from error
    return bytes(out)


def _zstd_frames(data: Buffer) -> Buffer:
    """The frames of `data` that hold data, checked by their headers: the library's reader ends quietly at a cut, and
    does not know the frames that decoders skip.
    """
    frames, pos, size = [], 0, len(data)
    while pos < size or pos == 0:
        skips = size - pos >= 8 and int.from_bytes(data[pos : pos + 4], "little") in _ZSTD_SKIPPABLE
        end = pos + 8 + int.from_bytes(data[pos + 4 : pos + 8], "little") if skips else _zstd_frame_end(data, pos)
        if end > size:
            raise CorruptRecord("zstd: the frame is cut short")
        if not skips:
            frames.append(data[pos:end])
        pos = end
    return data if len(frames) == 1 and len(frames[0]) == size else b"".join(frames)


def _zstd_frame_end(data: Buffer, pos: int) -> int:
    """The position after the frame at `pos`, by the headers of its blocks (RFC 8878, 3.1.1); may be beyond `data`."""
    import zstandard  # noqa: PLC0415  see the head of this file

    frame = data[pos : pos + 18]
    pos += zstandard.frame_header_size(frame)
    last = False
    while not last and pos <= len(data):
        block = int.from_bytes(data[pos : pos + 3], "little")
        # Bit 0: the last block; bits 1 and 2: its type, 1 for a run length with one byte of content; then its size.
        last = bool(block & 1)
        pos += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
    return pos + (4 if zstandard.get_frame_parameters(frame).has_checksum else 0)
