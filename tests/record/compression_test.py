"""Codecs both ways, against Apache Kafka's framings, and decompression bombs that must be refused."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from contextlib import suppress

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.peak import peak_of

from ottla.record.compression import CODEC_NAMES, Codec, codec_number, compress, decompress
from ottla.record.errors import CorruptRecord

PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LIMIT = 1 << 20


@given(st.sampled_from(Codec), st.binary(max_size=2000), st.integers(1, 100))
def test_there_and_back(codec: int, data: bytes, times: int) -> None:
    data *= times
    assert decompress(codec, memoryview(compress(codec, data)), len(data)) == data


@pytest.mark.parametrize("codec", PACKED)
def test_one_byte_over_the_limit_is_refused(codec: int) -> None:
    packed = compress(codec, bytes(1000))
    assert decompress(codec, packed, 1000) == bytes(1000)
    with pytest.raises(CorruptRecord, match="more than 999 bytes"):
        decompress(codec, packed, 999)


def snappy_chunks() -> bytes:
    xerial = struct.pack(">8sii", b"\x82SNAPPY\x00", 1, 1)
    block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
    return xerial + (struct.pack(">i", len(block)) + block) * 64


def zstd_stream() -> bytes:
    gigabyte = zstandard.ZstdCompressor(level=1).compressobj()
    zeros = bytes(1 << 20)
    return b"".join([gigabyte.compress(zeros) for _ in range(256)]) + gigabyte.flush()


BOMBS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "gzip": (1, lambda: gzip.compress(bytes(1 << 26), 9)),
    "gzip members": (1, lambda: gzip.compress(bytes(1 << 19)) * 64),
    "snappy raw": (2, lambda: bytes(cramjam.snappy.compress_raw(bytes(1 << 26)))),
    "snappy chunks": (2, snappy_chunks),
    "lz4": (3, lambda: lz4.frame.compress(bytes(1 << 26))),
    "zstd": (4, lambda: zstandard.compress(bytes(1 << 26))),
    "zstd stream": (4, zstd_stream),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BOMBS))
def test_decompression_bombs_are_refused(name: str) -> None:
    codec, make = BOMBS[name]
    packed = make()

    def unpack() -> None:
        with pytest.raises(CorruptRecord, match="expand to more than"):
            decompress(codec, packed, LIMIT)

    assert peak_of(unpack) < 4 * LIMIT


@pytest.mark.parametrize("codec", PACKED)
def test_a_cut_stream_is_refused_wherever_it_is_cut(codec: int) -> None:
    packed = compress(codec, b"hello world " * 300)
    for size in range(len(packed)):
        if codec == Codec.SNAPPY and size == 16:
            continue  # xerial's framing has no end mark: cut between blocks it is shorter, not broken
        with pytest.raises(CorruptRecord):
            decompress(codec, packed[:size], LIMIT)


@given(st.sampled_from(PACKED), st.binary(max_size=100))
def test_arbitrary_bytes_expand_or_are_refused(codec: int, data: bytes) -> None:
    with suppress(CorruptRecord):
        assert len(decompress(codec, data, LIMIT)) <= LIMIT


@given(st.sampled_from(PACKED), st.binary(min_size=1, max_size=500), st.data())
def test_damaged_bytes_expand_or_are_refused(codec: int, content: bytes, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, content))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptRecord):
        assert len(decompress(codec, packed, LIMIT)) <= LIMIT


@pytest.mark.parametrize(
    ("codec", "packed", "why"),
    [
        (5, b"", "there is no codec 5"),
        (2, b"\x82SNAPPY\x00", "header is cut"),
        (2, struct.pack(">8sii", b"\x82SNAPPY\x00", 1, 1) + b"\0\0", "length is cut"),
        (2, struct.pack(">8siii", b"\x82SNAPPY\x00", 1, 1, -1) + b"abc", "a block of -1 bytes"),
        (2, struct.pack(">8siii", b"\x82SNAPPY\x00", 1, 1, 0) + b"abc", "a block of 0 bytes"),
        (2, struct.pack(">8siii", b"\x82SNAPPY\x00", 1, 1, 2**31 - 1), "a block of 2147483647 bytes"),
        (2, b"\xff\xff\xff\xff\xff\xff", "does not begin with its size"),
        (2, b"\xff\xff\xff\xff\x0f", "more than"),
        (3, lz4.frame.compress(b"abc") + b"rest", "4 bytes after the frame"),
        (3, b"\x04\x22\x4d\x18\x64\x40\x00" + bytes(8), "lz4: "),
        (4, zstandard.compress(b"abc") + b"rest", "zstd: "),
        # A frame that declares 2^60 bytes of content in a single segment: no such window is granted.
        (4, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 60) + b"\x01\x00\x00", "zstd: "),
        # A window descriptor of 2^31 bytes.
        (4, b"\x28\xb5\x2f\xfd\x00\xa8\x0b\x00\x00\x00", "zstd: "),
        # An unknown dictionary.
        (4, b"\x28\xb5\x2f\xfd\x21\x07\x03\x19\x00\x00abc", "zstd: "),
    ],
)
def test_invalid_compressed_bytes_are_refused(codec: int, packed: bytes, why: str) -> None:
    with pytest.raises(CorruptRecord, match=why):
        decompress(codec, packed, LIMIT)


def test_both_snappy_framings_are_read_and_javas_is_written() -> None:
    data = bytes(range(256)) * 300
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert decompress(2, raw, LIMIT) == data
    packed = compress(2, data)
    assert packed[:16] == b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1"
    first = struct.unpack_from(">i", packed, 16)[0]
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == data[: 32 * 1024]


def test_lz4_frames_are_of_the_kind_that_java_reads() -> None:
    """Version 01, independent blocks, no checksums, no content size, blocks of 64 KiB."""
    assert compress(3, bytes(1000))[4:6] == b"\x60\x40"


def test_several_gzip_members_are_one_stream() -> None:
    assert decompress(1, gzip.compress(b"ab") + gzip.compress(b"cd"), 4) == b"abcd"


@pytest.mark.parametrize("behind", [b"\0" * 8, b"\0", b"rest", b"\x1f", b"\0\0rest"])
def test_padding_after_the_last_gzip_member_is_ignored(behind: bytes) -> None:
    """As Java, librdkafka and, where it is zeros, Python's own gzip do."""
    packed = gzip.compress(b"ab") + gzip.compress(b"cd")
    assert decompress(1, packed + behind, 4) == b"abcd"
    if not behind.strip(b"\0"):
        assert gzip.decompress(packed + behind) == b"abcd"
        assert decompress(1, packed + behind + packed, 8) == gzip.decompress(packed + behind + packed)


SKIPPABLE = [
    (0x184D2A50 + kind).to_bytes(4, "little") + size.to_bytes(4, "little") + bytes(size)
    for kind, size in ((0, 0), (15, 7))
]


@pytest.mark.parametrize("skipped", SKIPPABLE)
def test_frames_that_zstd_decoders_skip_are_skipped(skipped: bytes) -> None:
    """pzstd and the seekable format write them; Java's binding and librdkafka's library skip them."""
    frames = [zstandard.compress(b"ab"), zstandard.compress(b"cd" * 1_000)]
    whole = b"ab" + b"cd" * 1_000
    for parts in ([skipped, *frames], [*frames, skipped], [frames[0], skipped, frames[1]], [skipped, skipped, *frames]):
        assert decompress(4, b"".join(parts), LIMIT) == whole
        assert decompress(4, memoryview(b"".join(parts)), LIMIT) == whole
    assert decompress(4, skipped, LIMIT) == b""


@pytest.mark.parametrize("cut", range(1, 15))
def test_a_frame_to_skip_that_is_cut_is_refused(cut: int) -> None:
    with pytest.raises(CorruptRecord):
        decompress(4, zstandard.compress(b"ab") + SKIPPABLE[1][:cut], LIMIT)


def test_levels_are_those_of_the_configuration() -> None:
    data = b"".join(b"%d:%d " % (i * i % 977, i) for i in range(20_000))
    assert len(compress(1, data, 1)) > len(compress(1, data, 9))
    assert len(compress(3, data)) == len(compress(3, data, 9)) > len(compress(3, data, 17))
    assert len(compress(4, data, -5)) > len(compress(4, data, 19))
    for codec, level in [(1, 10), (1, -2), (3, 0), (3, 18), (4, 23), (4, -131073)]:
        with pytest.raises(ValueError, match="has levels"):
            compress(codec, data, level)
    with pytest.raises(ValueError, match="no codec 5"):
        compress(5, data)


def test_codecs_by_name() -> None:
    assert [codec_number(name) for name in CODEC_NAMES] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="not in"):
        codec_number("lzma")
