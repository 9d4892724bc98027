"""The columnar codec, with compiled loops and with numpy, compared with the plain one of `ottla.record.batch`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.columns import columnar, columnar_numba, columnar_numpy
from ottla.client.columns.columnar import Columns, Encoder, Producer
from ottla.record import batch as plain
from ottla.record.batch import Record
from ottla.record.errors import CorruptRecord
from ottla.utf8 import readable_text

choose = columnar.record_loops.__wrapped__
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
blobs = st.none() | st.binary(max_size=40) | st.binary(min_size=130, max_size=300)
headers = st.lists(st.tuples(st.text(max_size=8), blobs), max_size=4).map(tuple)
stamps = st.integers(-1, 1 << 42)
rows = st.lists(st.tuples(stamps, blobs, blobs, headers), min_size=1, max_size=30)


@pytest.fixture(params=[columnar_numba, columnar_numpy], ids=["numba", "numpy"], autouse=True)
def loops(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Every test runs with both implementations of the loops."""
    patch = pytest.MonkeyPatch()
    patch.setattr(columnar, "record_loops", lambda: request.param)
    yield request.param
    patch.undo()


def decode(data: bytes | bytearray | memoryview, **options: object) -> Columns:
    """All whole batches of `data`."""
    return columnar.decode_batches(data, [pos for pos, _ in plain.batches_of(data)], **options)


def numbered(content: list[tuple], first: int = 0) -> list[Record]:
    return [Record(first + number, *fields) for number, fields in enumerate(content)]


def records_of(columns: Columns) -> list[Record]:
    assert columns.headers is not None
    return [
        Record(offset, time, key, value, tuple((one["key"], one["value"]) for one in head or ()))
        for offset, time, key, value, head in zip(
            columns.offsets.tolist(),
            columns.timestamps.tolist(),
            columns.keys.to_pylist(),
            columns.values.to_pylist(),
            columns.headers.to_pylist(),
            strict=True,
        )
    ]


def encoder(content: list[tuple]) -> Encoder:
    return Encoder(
        pa.array([key for _, key, _, _ in content], pa.binary()),
        pa.array([value for _, _, value, _ in content], pa.binary()),
        np.array([stamp for stamp, _, _, _ in content], np.int64),
        pa.array([[{"key": k, "value": v} for k, v in head] for _, _, _, head in content], HEADERS),
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.lists(rows, min_size=1, max_size=4), st.integers(0, 4), st.integers(0, 1 << 40))
def test_batches_of_the_plain_encoder_are_decoded_to_columns(content: list, codec: int, first: int) -> None:
    records: list[Record] = []
    data = bytearray()
    for number, part in enumerate(content):
        some = numbered(part, first + len(records))
        data += plain.encode_batch(some, base_offset=some[0].offset, codec=(codec + number) % 5)
        records += some
    columns = decode(data, start=first, headers=True)
    assert records_of(columns) == records
    assert columns.timestamp_types.tolist() == [0] * len(records)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(rows, st.integers(0, 4), st.integers(60, 2000))
def test_batches_of_the_column_encoder_are_read_by_the_plain_decoder(content: list, codec: int, size: int) -> None:
    producer = Producer(7, 3, 2**31 - 4)
    batches = encoder(content).encode_batches(np.arange(len(content)), codec=codec, max_bytes=size, producer=producer)
    read: list[Record] = []
    for records, data in batches:
        header = plain.header_at(data)
        assert plain.crc_ok(memoryview(data), 0, len(data))
        assert (header.size, header.record_count, header.codec) == (len(data), records, codec)
        assert (header.producer_id, header.producer_epoch) == (7, 3)
        assert header.base_sequence == (producer.sequence + len(read)) % 2**31
        some = list(plain.records_of(data, max_bytes=1 << 20))
        assert header.max_timestamp == max(record.timestamp for record in some)
        assert codec or len(some) == 1 or header.size - plain.HEADER_SIZE <= size
        read += [record._replace(offset=record.offset + len(read)) for record in some]
    assert read == numbered(content)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(rows, st.data())
def test_rows_are_chosen_in_any_order(content: list, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(content) - 1)))
    batches = encoder(content).encode_batches(np.array(chosen, np.int64))
    read = [record for _, one in batches for record in plain.records_of(one, max_bytes=1 << 20)]
    assert [record[1:] for record in read] == [content[number] for number in chosen]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(rows, st.integers(0, 40), st.integers(0, 40))
def test_only_the_requested_offsets_are_delivered(content: list, start: int, end: int) -> None:
    data = plain.encode_batch(numbered(content))
    columns = decode(data, start=start, end=end, headers=True)
    assert records_of(columns) == [one for one in numbered(content) if start <= one.offset < end]


def emptied() -> bytearray:
    empty = bytearray(plain.encode_batch([Record(1, 5, None, b"")])[: plain.HEADER_SIZE])
    empty[7:12] = b"\1" + (plain.HEADER_SIZE - 12).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    return empty


def test_a_batch_that_compaction_emptied_has_no_records() -> None:
    one, empty = plain.encode_batch([Record(0, 5, None, b"a")]), emptied()
    two = plain.encode_batch([Record(2, 5, None, b"b")], base_offset=2)
    assert decode(empty + one + empty + two).values.to_pylist() == [b"a", b"b"]
    assert decode(empty).values.to_pylist() == []
    assert decode(b"").values.to_pylist() == []


def test_log_append_time_is_the_same_for_every_record_of_a_batch() -> None:
    data = plain.encode_batch([Record(0, 5, None, b"a"), Record(1, 9, None, b"b")])
    plain.set_append_time(data, 0, 77)
    columns = decode(data)
    assert columns.timestamps.tolist() == [77, 77]
    assert columns.timestamp_types.tolist() == [1, 1]


def test_decompression_is_bounded() -> None:
    data = plain.encode_batch([Record(0, 5, None, bytes(1 << 20))], codec=4)
    assert len(data) < 2000
    with pytest.raises(CorruptRecord):
        decode(data, max_bytes=1 << 16)


def test_offsets_that_do_not_rise_are_refused() -> None:
    data = plain.encode_batch([Record(0, 5, None, b"a"), Record(1, 5, None, b"b")])
    data[-8 + 3] = 0
    plain.seal_crc(data, 0, len(data))
    with pytest.raises(CorruptRecord, match="rise"):
        decode(data)
    with pytest.raises(CorruptRecord, match="rise"):
        decode(emptied() + data)


def test_invalid_text_in_header_keys_becomes_replacement_characters() -> None:
    data = plain.encode_batch([Record(0, 5, None, b"a", (("ab", b"v"),))])
    data[data.index(b"ab")] = 0xFF
    plain.seal_crc(data, 0, len(data))
    got = decode(data, headers=True).headers
    assert got is not None
    assert got.to_pylist() == [[{"key": "�b", "value": b"v"}]]


def test_records_without_headers_show_null() -> None:
    data = plain.encode_batch([Record(0, 5, None, b"a"), Record(1, 5, None, b"b", (("h", None),))])
    got = decode(data, headers=True).headers
    assert got is not None
    assert got.to_pylist() == [None, [{"key": "h", "value": None}]]


def test_text_columns_slices_and_missing_keys_are_encoded() -> None:
    values = pa.array(["x", "zwölf", None, "y"]).slice(1, 3)
    data = Encoder(None, values, np.array([1, 2, 3], np.int64)).encode_batches(np.arange(3))[0].data
    read = list(plain.records_of(data, max_bytes=1 << 20))
    assert [record.value for record in read] == ["zwölf".encode(), None, b"y"]
    assert [record.key for record in read] == [None] * 3


def test_sliced_header_lists_are_encoded() -> None:
    content = [(1, None, b"v", ((f"h{n}", b"x" * n),)) for n in range(4)]
    all_headers = pa.array([[{"key": k, "value": v} for k, v in head] for *_, head in content] + [None], HEADERS)
    values = pa.array([b"v"] * 3)
    data = Encoder(None, values, np.ones(3, np.int64), all_headers.slice(2)).encode_batches(np.arange(3))[0].data
    read = list(plain.records_of(data, max_bytes=1 << 20))
    assert [record.headers for record in read] == [(("h2", b"xx"),), (("h3", b"xxx"),), ()]


def test_a_header_without_a_key_is_refused() -> None:
    bad = pa.array([[{"key": None, "value": b"v"}]], HEADERS)
    with pytest.raises(ValueError, match="header keys"):
        Encoder(None, pa.array([b"v"]), np.ones(1, np.int64), bad)


def as_arrow_has_it(record: Record) -> Record:
    """The record with its header names as UTF-8 text, as Arrow has them."""
    return record._replace(headers=tuple((readable_text(name), value) for name, value in record.headers))


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(rows, st.integers(0, 4), st.data())
def test_damaged_records_are_read_or_refused_but_never_crash(content: list, codec: int, data: st.DataObject) -> None:
    """Damages bytes and corrects the checksum: this decoder accepts the same batches as the plain one, with the same
    result."""
    batch = bytearray(plain.encode_batch(numbered(content), codec=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        pos = data.draw(st.integers(57 if codec == 0 else 61, len(batch) - 1))
        batch[pos] = data.draw(st.integers(0, 255))
    plain.seal_crc(batch, 0, len(batch))
    try:
        expected = [as_arrow_has_it(each) for each in plain.records_of(batch, max_bytes=1 << 20)]
    except CorruptRecord:
        expected = None
    try:
        got = records_of(decode(batch, headers=True, max_bytes=1 << 20))
    except CorruptRecord:
        assert expected is None
        return
    assert expected is None or got == expected


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=120), st.integers(-5, 40))
def test_any_bytes_are_read_or_refused_but_never_crash(junk: bytes, count: int) -> None:
    head = plain.encode_batch([Record(0, 5, None, b"")])[: plain.HEADER_SIZE]
    batch = bytearray(head) + junk
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    plain.seal_crc(batch, 0, len(batch))
    try:
        expected = list(plain.records_of(batch, max_bytes=1 << 20))
    except CorruptRecord:
        with pytest.raises(CorruptRecord):
            decode(batch, headers=True)
        return
    assert records_of(decode(batch, headers=True)) == expected


def test_the_compiled_loops_are_compiled_for_one_set_of_types(loops: ModuleType) -> None:
    """Another layout or a writable array would cause a compilation of seconds in the middle of a query."""
    if loops is columnar_numpy:
        return
    content = [(1, b"k", b"v", (("h", b"x"),)), (2, None, None, ())]
    batch = encoder(content).encode_batches(np.arange(2))[0].data
    for data in (bytes(batch), bytearray(batch), memoryview(batch)):
        decode(data, headers=True)
    decode(plain.encode_batch(numbered(content), codec=3), start=1, headers=True)
    Encoder(None, pa.array(["a"]), np.ones(1, np.int64)).encode_batches(np.arange(1))
    for name in ("index_records", "place", "index_headers", "gather", "write_records"):
        assert len(getattr(loops, name).signatures) == 1, name


@pytest.mark.slow
def test_the_numpy_loops_are_used_without_a_cache_for_compiled_code() -> None:
    """Compiling in every worker would take longer than it saves."""
    program = """
from numba.core import caching
caching.CacheImpl._locator_classes = []
from ottla.client.columns import columnar, columnar_numpy
assert columnar.record_loops() is columnar_numpy
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_numpy_loops_are_used_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose() is columnar_numba
    monkeypatch.setitem(sys.modules, "ottla.client.columns.columnar_numba", None)
    monkeypatch.delattr("ottla.client.columns.columnar_numba")
    assert choose() is columnar_numpy


@given(st.lists(blobs, max_size=40), st.integers(0, 20))
def test_the_fields_of_a_part_of_an_array_are_where_its_bytes_are(content: list[bytes | None], first: int) -> None:
    part = pa.array(content, pa.binary()).slice(first)
    data, (at, size) = columnar.fields_of(part)
    found = [None if n < 0 else bytes(data[pos : pos + n]) for pos, n in zip(at.tolist(), size.tolist(), strict=True)]
    assert found == content[first:]


def test_pandas_is_not_loaded_to_encode() -> None:
    script = """
import sys
import numpy as np
asked = []
class Watch:
    def find_spec(self, name, path=None, target=None):
        asked.append(name)
sys.meta_path.insert(0, Watch())
import pyarrow as pa
from ottla.client.columns.columnar import Encoder
edges = np.array([0, 1, 1], np.int32)
values = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\\x01"), pa.py_buffer(edges), pa.py_buffer(b"x")])
print(len(Encoder(values, values, np.zeros(2, np.int64)).encode_batches(np.arange(2))), "pandas" in asked)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert told.stdout == "1 False\n", told.stderr
