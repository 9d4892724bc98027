"""Decoding of fetched batches: the plain decoder and that of the extra `fast` have the same results."""

from __future__ import annotations

import random
import sys

import pytest

from ottla.client import CorruptBatchError, DeserializationError, TopicPartition
from ottla.client.consumer.record import WARM_UP, ConsumerRecord, Decoder, load_numba_decoder
from ottla.client.fetching.batches import Fetched
from ottla.record.batch import HEADER_SIZE, Record, encode_batch

WHERE = TopicPartition("t", 3)
T = 1_700_000_000_000
needs_numba = pytest.mark.skipif(load_numba_decoder() is None, reason="numba is not installed")


def fetched(data: bytes, start: int = 0) -> Fetched:
    return Fetched(WHERE, start, 10**6, memoryview(data), 10**6, 10**6, 0, (), True, None)


def plain(**deserializers) -> Decoder:
    return Decoder(False, deserializers.get("key"), deserializers.get("value"), warm_up=None)


def fast(**deserializers) -> Decoder:
    """A decoder that uses numba from the second record on."""
    decoder = Decoder(False, deserializers.get("key"), deserializers.get("value"), warm_up=1)
    list(decoder.decode_records(fetched(bytes(encode_batch([Record(0, T, None, None)])))))
    return decoder


def drawn(seed: int, count: int) -> list[Record]:
    """Records with all optional fields, and with gaps like those of compaction."""
    draw = random.Random(seed)
    offset, records = 100, []
    for _ in range(count):
        key = draw.choice([None, b"", b"key", draw.randbytes(draw.choice([63, 64, 70]))])
        value = draw.choice([None, b"", draw.randbytes(draw.choice([5, 63, 64, 100, 8_191, 8_192, 20_000]))])
        headers = draw.choice([(), (), (("h", b"1"), ("ü", None), ("h", b""))])
        records.append(Record(offset, T + draw.randrange(-(2**33), 2**33), key, value, headers))
        offset += draw.choice([1, 1, 1, 2, 70, 9_000])
    return records


def outcome(decoder: Decoder, data: bytes, start: int = 0) -> tuple[list[ConsumerRecord], str]:
    """The decoded records, and the error at the end."""
    found: list[ConsumerRecord] = []
    try:
        found.extend(decoder.decode_records(fetched(data, start)))
    except CorruptBatchError as error:
        return found, str(error)
    return found, ""


@needs_numba
@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("stamped", [0, 1])
def test_both_ways_find_the_records_that_were_written(codec: int, stamped: int) -> None:
    for seed in range(6):
        records = drawn(seed, 120)
        data = bytes(
            encode_batch(records, base_offset=100, codec=codec, timestamp_type=stamped, leader_epoch=7)
            + encode_batch([Record(10**6, T, None, b"last")], base_offset=10**6)
        )
        largest = max(record.timestamp for record in records)
        expected = [
            ConsumerRecord("t", 3, r.offset, largest if stamped else r.timestamp, stamped, r.key, r.value, r.headers, 7)
            for r in records
        ]
        middle = records[50].offset
        for decoder in (plain(), fast()):
            found = list(decoder.decode_records(fetched(data)))
            assert found[:-1] == expected
            assert found[-1].value == b"last"
            assert all(type(record) is ConsumerRecord for record in found)
            assert list(decoder.decode_records(fetched(data, middle)))[:-1] == expected[50:]


@needs_numba
def test_a_damaged_batch_gives_the_same_records_and_the_same_error_both_ways() -> None:
    draw = random.Random(8)
    errors = 0
    records = [
        Record(n, T + n, b"k" if n % 3 else None, b"v" * (n % 4), (("h", b"x"),) if n % 7 == 0 else ())
        for n in range(80)
    ]
    good = encode_batch(records)
    decoders = plain(), fast()
    for _ in range(400):
        data = bytearray(good)
        for _ in range(draw.choice([1, 1, 2])):
            data[draw.randrange(HEADER_SIZE, len(data))] = draw.choice([0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        slow, quick = (outcome(decoder, bytes(data)) for decoder in decoders)
        assert slow == quick
        errors += bool(slow[1])
    assert 100 < errors < 400


@needs_numba
def test_numba_is_used_after_a_warm_up_or_if_it_is_imported_already(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(encode_batch([Record(n, T, None, b"v") for n in range(1_000)]))

    def plain_ones() -> list[bool]:
        decoder, seen = Decoder(False, None, None, warm_up=5_000), []
        for _ in range(7):
            list(decoder.decode_records(fetched(data)))
            seen.append(decoder._at_once is None)
        return seen

    assert Decoder(False, None, None)._left == WARM_UP
    list(fast().decode_records(fetched(data)))  # numba imports more modules on the first call
    assert plain_ones() == [False] * 7
    monkeypatch.delitem(sys.modules, "numba")
    assert plain_ones() == [True] * 4 + [False] * 3


def test_deserializers_are_not_called_for_null() -> None:
    records = [Record(n, T, b"k" if n % 2 else None, b"%d" % n) for n in range(100)]
    data = bytes(encode_batch(records))
    words = {"key": lambda topic, key: f"{topic}/{key.decode()}", "value": lambda _, value: int(value)}
    for decoder in [plain(**words), *([fast(**words)] if load_numba_decoder() else [])]:
        assert [(r.key, r.value) for r in decoder.decode_records(fetched(data))] == [
            ("t/k" if n % 2 else None, n) for n in range(100)
        ]

    def fussy(_: str, value: bytes) -> bytes:
        return {b"60": None}.get(value, value).upper()  # type: ignore[union-attr]

    for decoder in [plain(value=fussy), *([fast(value=fussy)] if load_numba_decoder() else [])]:
        found: list[ConsumerRecord] = []
        with pytest.raises(DeserializationError) as failed:
            found.extend(decoder.decode_records(fetched(data)))
        assert failed.value.offset == 60 == len(found), "those before it are there"
