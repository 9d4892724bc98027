"""`ottla export` and `ottla import`: JSON lines, CSV and Parquet, there and back, with records of every kind."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.conftest import Ottla

from ottla.cli.commands.records.produce import lines_of
from ottla.cli.failure import BadLine, CommandFailed
from ottla.cli.files.cells import CELL_FORMATS, parse_cell, show_cell
from ottla.cli.files.finished_file import open_finished
from ottla.cli.files.parquet_records import ParquetWriter, read_parquet
from ottla.cli.files.record_files import FILE_FORMATS, make_writer, open_records
from ottla.cli.reading.decoded import DecodedRecord
from ottla.utf8 import decode_text

TEXTS = st.sampled_from(
    ["", "a", '"', "a,b", "x\r\ny", "\r", "\n", "null", "ä€\U0001f600", "\0", '{"a": 1.10}', "[1]", "5"]
)
BYTES = st.one_of(TEXTS.map(str.encode), st.binary(max_size=9), st.text(max_size=9).map(lambda text: text.encode()))
PARTS = st.one_of(st.none(), BYTES)
NAMES = st.one_of(TEXTS, st.binary(max_size=5).map(decode_text))
HEADERS = st.lists(st.tuples(NAMES, PARTS), max_size=3).map(tuple)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.builds(DecodedRecord, st.integers(0, 2**62), st.integers(0, 2**62), PARTS, PARTS, HEADERS),
    ),
    max_size=6,
)  # fmt: skip
KEPT = ("-c", "retention.ms=-1")
"""Records with old timestamps are not deleted meanwhile."""
_names = (f"files-{number}" for number in count())


def read_lines(stream: io.BufferedIOBase, longest: int) -> Iterator[bytes]:
    return lines_of(stream, longest, lambda: None)  # type: ignore[arg-type]


def read_all(
    path: Path, file_format: str, formats: tuple[str, str] = ("auto", "auto"), skip: int = 0, most: int = 9_999
):
    with open_records(str(path), file_format, skip, most, formats, read_lines) as records:
        return list(records)


def write_all(path: Path, file_format: str, records: list[tuple[int, DecodedRecord]], formats=("auto", "auto")) -> None:
    with open(path, "wb") as stream:
        writer = make_writer(stream, "t", file_format, *formats)
        for partition, record in records:
            writer.write_record(partition, record)
        writer.end_file()


def has_plain_keys(record: DecodedRecord) -> bool:
    return all(
        name.isascii() or name.encode(errors="surrogateescape").decode(errors="replace") == name
        for name, _ in record.headers
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=RECORDS, key_format=st.sampled_from(CELL_FORMATS[:-1]), value_format=st.sampled_from(CELL_FORMATS[:-1]))
@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_what_is_written_can_be_read_back(
    tmp_path: Path, file_format: str, records: list[tuple[int, DecodedRecord]], key_format: str, value_format: str
) -> None:
    if file_format == "parquet":  # whose columns are bytes, or text for all records
        key_format = value_format = "auto"
        records = [each for each in records if has_plain_keys(each[1])]
    formats = key_format, value_format
    path = tmp_path / "f"
    write_all(path, file_format, records, formats)
    read = read_all(path, file_format, formats)
    assert [number for number, _ in read] == list(range(1, len(records) + 1))
    assert [(line.partition, line.timestamp, line.key, line.value, line.headers) for _, line in read] == [
        (partition, each.timestamp, each.key, each.value, each.headers) for partition, each in records
    ]
    for skip in range(len(records) + 1):
        assert read_all(path, file_format, formats, skip) == read[skip:]


@pytest.mark.slow
@given(
    st.sampled_from(CELL_FORMATS),
    st.one_of(BYTES, st.binary(min_size=4, max_size=4), st.binary(min_size=8, max_size=8)),
)
def test_a_cell_gives_its_bytes_back_or_is_none(name: str, content: bytes) -> None:
    shown = show_cell(name)(content)
    if shown is not None and name != "json":
        assert parse_cell(name)(shown) == content
    if shown is not None and name == "json":
        assert show_cell(name)(shown.encode()) == shown
        assert json.loads(shown) == json.loads(content)


def test_a_float_whose_bits_its_text_does_not_have_is_no_text() -> None:
    show = show_cell("float32")
    assert (show(bytes.fromhex("7fc00001")), show(bytes.fromhex("7fc00000")), show(b"\0")) == (None, "nan", None)


def test_documents_that_json_lines_would_read_otherwise_are_base64(tmp_path: Path) -> None:
    contents = [b"null", b'{"base64":"AA=="}', b'"text"', b'{ "a" : 1.10 }', b"\xff", b'"\\ud800"', b"[" * 100_000]
    records = [(0, DecodedRecord(at, 0, None, content, ())) for at, content in enumerate(contents)]
    write_all(tmp_path / "f", "jsonl", records, ("auto", "json"))
    shown = [json.loads(line)["value"] for line in (tmp_path / "f").read_text().splitlines()]
    assert shown[2:4] == ["text", {"a": 1.1}]
    assert all(isinstance(each, dict) and "base64" in each for each in shown[:2] + shown[4:])
    read = [line.value for _, line in read_all(tmp_path / "f", "jsonl", ("auto", "json"), most=1 << 20)]
    assert read == [*contents[:3], b'{"a":1.10}', *contents[4:]]


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(records=RECORDS.filter(bool))
def test_export_import_export_is_equal(ottla: Ottla, tmp_path: Path, records: list[tuple[int, DecodedRecord]]) -> None:
    records = [each for each in records if has_plain_keys(each[1])]
    first, *others = (next(_names) for _ in range(4))
    for name in (first, *others):
        assert ottla("topic", "create", name, "-p", "3", *KEPT).exit_code == 0
    write_all(tmp_path / "in", "jsonl", records)
    assert ottla("import", first, str(tmp_path / "in"), "--format", "jsonl").exit_code == 0
    whole = exported(ottla, first, tmp_path / "a")
    assert len(whole) == len(records)
    for name, file_format in zip(others, FILE_FORMATS, strict=True):
        path = str(tmp_path / f"b.{file_format}")
        assert ottla("export", first, path, "--overwrite").exit_code == 0
        done = ottla("import", name, path)
        assert done.exit_code == 0, done.stderr
        assert exported(ottla, name, tmp_path / "a") == [line.replace(f'"{first}"', f'"{name}"', 1) for line in whole]


def exported(ottla: Ottla, topic: str, path: Path, *words: str) -> list[str]:
    done = ottla("export", topic, str(path), "--format", "jsonl", "--overwrite", *words)
    assert done.exit_code == 0, done.stderr
    return path.read_text().splitlines()


@pytest.fixture(scope="module")
def mixed(brokers: str) -> str:
    """A topic with records of several kinds in two partitions."""
    from click.testing import CliRunner

    from ottla.cli.main import cli

    lines = [
        {"partition": 0, "timestamp": 1_700_000_000_000, "key": "k", "value": 'a,"b"\nc', "headers": {"h": "1"}},
        {"partition": 1, "timestamp": 1_700_000_000_001, "key": None, "value": "", "headers": []},
        {"partition": 0, "timestamp": 1_700_000_000_002, "key": "", "value": None, "headers": {"h": None}},
        {"partition": 1, "timestamp": 1_700_000_000_003, "key": {"base64": "/w=="}, "value": {"base64": "AP8="}},
        {"partition": 0, "timestamp": 1_700_000_000_004, "key": "z", "value": "ä"},
    ]  # fmt: skip
    env = {"OTTLA_BROKERS": brokers}
    CliRunner().invoke(cli, ["topic", "create", "mixed", "-p", "2", *KEPT], env=env)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert CliRunner().invoke(cli, ["produce", "mixed", "--jsonl"], input=text, env=env).exit_code == 0
    return "mixed"


def test_others_read_the_files(ottla: Ottla, mixed: str, tmp_path: Path) -> None:
    for file_format in ("csv", "parquet"):
        done = ottla("export", mixed, str(tmp_path / f"f.{file_format}"), "-o", "json")
        assert json.loads(done.stdout)["partitions"] == [
            {"partition": 0, "from_offset": 0, "to_offset": 3, "records": 3},
            {"partition": 1, "from_offset": 0, "to_offset": 2, "records": 2},
        ]
    values = [b'a,"b"\nc', None, "ä".encode(), b"", b"\x00\xff"]
    keys = [b"k", b"", b"z", None, b"\xff"]
    table = pq.read_table(tmp_path / "f.parquet").to_pydict()
    assert (table["value"], table["key"], table["partition"]) == (values, keys, [0, 0, 0, 1, 1])
    assert table["headers"][:2] == [[{"key": "h", "value": b"1"}], [{"key": "h", "value": None}]]
    assert [round(each.timestamp() * 1000) - 1_700_000_000_000 for each in table["timestamp"]] == [0, 2, 4, 1, 3]
    query = f"select key, value, epoch_ms(timestamp) - 1700000000000, \"offset\" from '{tmp_path / 'f.parquet'}'"
    places = ([0, 2, 4, 1, 3], [0, 1, 2, 0, 1])
    assert duckdb.sql(query).fetchall() == list(zip(keys, values, *places, strict=True))
    with (tmp_path / "f.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["key_format"], row["value"], row["value_format"]) for row in rows] == [
        ("text", 'a,"b"\nc', "text"), ("text", "", "null"), ("text", "ä", "text"), ("null", "", "text"),
        ("base64", "AP8=", "base64"),
    ]  # fmt: skip
    found = duckdb.sql(
        f"select value, partition from read_csv('{tmp_path / 'f.csv'}') where value_format = 'text'"
    ).fetchall()
    assert [(value or "", int(partition)) for value, partition in found] == [('a,"b"\nc', 0), ("ä", 0), ("", 1)]


@pytest.mark.parametrize(
    ("words", "offsets"),
    [((), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]), (("-p", "1"), [(1, 0), (1, 1)]),
     (("--from", "-1"), [(0, 2), (1, 1)]),
     (("--from", "1", "--to", "2"), [(0, 1), (1, 1)]), (("--to", "+1", "-p", "0"), [(0, 0)]), (("--from", "end"), []),
     (("--from", "@1700000000003"), [(0, 2), (1, 1)])],
)  # fmt: skip
def test_which_records(ottla: Ottla, mixed: str, words: tuple[str, ...], offsets: list[tuple[int, int]]) -> None:
    done = ottla("export", mixed, "-", *words)
    assert done.exit_code == 0, done.stderr
    assert [(row["partition"], row["offset"]) for row in map(json.loads, done.stdout.splitlines())] == offsets


def test_aborted_records_are_not_exported(ottla: Ottla, brokers: str, tmp_path: Path) -> None:
    from ottla.client import Producer

    ottla("topic", "create", "aborted", "-p", "1")
    with Producer({"bootstrap.servers": brokers, "transactional.id": "aborted"}) as producer:
        producer.init_transactions()
        for value, end in ((b"yes", producer.commit_transaction), (b"no", producer.abort_transaction)):
            producer.begin_transaction()
            producer.send("aborted", value)
            producer.flush()
            end()
    lines = exported(ottla, "aborted", tmp_path / "f")
    assert [json.loads(line)["value"] for line in lines] == ["yes"]
    assert len(exported(ottla, "aborted", tmp_path / "f", "--isolation", "read_uncommitted")) == 2


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_an_unfinished_export_leaves_no_file(ottla: Ottla, mixed: str, tmp_path: Path, file_format: str) -> None:
    path = tmp_path / f"f.{file_format}"
    path.write_text("older")
    refused = ottla("export", mixed, str(path))
    assert (refused.exit_code, "--overwrite replaces it" in refused.stderr) == (2, True)
    # A partition that does not exist, after one that was written.
    failed = ottla("export", mixed, str(path), "--overwrite", "--value-format", "int64", "-p", "0", "-p", "9")
    assert failed.exit_code != 0
    assert (path.read_text(), os.listdir(tmp_path)) == ("older", [path.name])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "f"
    with open_finished(str(path)) as stream:
        stream.write(b"new")
        stream.flush()
        (part,) = tmp_path.iterdir()
        assert part.name.startswith("f.")
        assert part.name.endswith(".part")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["f"])
    with pytest.raises(error), open_finished(str(path)) as stream:  # noqa: PT012
        stream.write(b"other")
        raise error
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["f"])


def test_an_abandoned_parquet_file_is_not_one(tmp_path: Path) -> None:
    for end in (ParquetWriter.abandon_file, ParquetWriter.end_file):
        with (tmp_path / "f").open("wb") as stream:
            writer = ParquetWriter(stream)
            writer.write_record(0, DecodedRecord(0, 0, b"k", b"v", ()))
            end(writer)
            del writer
        if end is ParquetWriter.end_file:
            assert len(list(read_parquet(str(tmp_path / "f"), 0))) == 1
        else:
            with pytest.raises(CommandFailed, match="cannot be read as Parquet"):
                list(read_parquet(str(tmp_path / "f"), 0))


@pytest.mark.parametrize(
    ("file_format", "content", "message", "number"),
    [("jsonl", '{"value":"1"}\n{"value":"2"}\n{"valu":"3"}\n', "unknown field 'valu'", 3),
     ("csv", "value,partition\n1,0\n2,0\n3,zero\n", "partition is not a whole number from 0 to 2147483647 (line 4)", 3),
     ("csv", "value\n1\n2\n3,4\n", "it has 2 columns, and the header has 1 (line 4)", 3),
     ("csv", "value,value_format\n1,text\n2,text\nzz,hex\n", "value: it is not hexadecimal (line 4)", 3),
     ("csv", "value,value_format\n1,text\n2,text\n3,wrong\n", "value_format 'wrong' is none of null, auto", 3),
     ("csv", 'value\n1\n2\n"3"x\n', "',' expected after '\"' (line 4)", 3)],
)  # fmt: skip
@pytest.mark.parametrize("transactional", [False, True])
def test_a_bad_record_is_named_and_skip_continues(
    ottla: Ottla, tmp_path: Path, file_format: str, content: str, message: str, number: int, transactional: bool
) -> None:
    topic = next(_names)
    ottla("topic", "create", topic, "-p", "1")
    words = ("--transactional-id", topic, "--transaction-records", "2") if transactional else ()
    path = tmp_path / f"f.{file_format}"
    path.write_text(content)
    failed = ottla("import", topic, str(path), *words, "-o", "json")
    error = json.loads(failed.stderr)["error"]
    assert f"record {number} of the input" in error["message"]
    assert message in error["message"]
    assert f"--skip {number - 1}" in error["message"]
    assert (error["written"], error["continue_at"]) == (2, 3)
    lines = content.splitlines()
    path.write_text("\n".join([*lines[:-1], "\x7b}" if file_format == "jsonl" else lines[-2]]))
    again = ottla("import", topic, str(path), "--skip", "2", *words, "-o", "json")
    assert json.loads(again.stdout)["records"] == 1
    assert len(ottla("consume", topic, "-e").stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is not a header with the columns"), ("a,b\n", "the unknown column 'a'"), ("value,value\n", "each once"),
     ("partition\n1\n", "is not a header"), ('value\n"' + "x\n" * 60_000, "a quote may not be closed"),
     ("value\n" + "x" * 90_000, "is longer than"), ("value,headers\n1,[\n", "Expecting"),
     ("value\n\ufffe,\n", "it has 2"),
     ('value\n' + '",\n"' * 60_000, "a quote may not be closed")],
)  # fmt: skip
def test_csv_that_is_not_records(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "f").write_text(content)
    from ottla.client import UsageError

    with pytest.raises((BadLine, UsageError), match=message):
        read_all(tmp_path / "f", "csv", most=10_000)
    (tmp_path / "f").write_bytes(b"value\n\xff\n")
    with pytest.raises(BadLine, match=r"record 1 of the input: it is not UTF-8.*line 1"):
        read_all(tmp_path / "f", "csv")


def test_csv_of_a_spreadsheet(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes("\ufeffkey,value\r\na,00ff\r\n".encode())
    ((_, line),) = read_all(tmp_path / "f", "csv", ("auto", "hex"))
    assert (line.key, line.value, line.partition, line.timestamp) == (b"a", b"\x00\xff", None, None)


def test_parquet_that_is_not_records(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for query, message in [
        ("select 1 as value", "value is int32: it must be bytes or text"),
        ("select 'a' as value, 2 as other", "the unknown column 'other'"),
        ("select 1 as partition", "no key and no value"),
        ("select 'ab' as value, 1.5 as partition", "record 1 of the input: partition is not a whole number"),
        ("select 'zz' as value", "record 1 of the input: it is not hexadecimal"),
    ]:
        duckdb.sql(f"copy ({query}) to '{path}' (format parquet)")
        with pytest.raises((BadLine, CommandFailed), match=message):
            list(read_parquet(str(path), 0, "auto", "hex"))
    for content in (b"", b"PAR1", path.read_bytes()[:-9]):
        path.write_bytes(content)
        with pytest.raises(CommandFailed, match="cannot be read as Parquet"):
            list(read_parquet(str(path), 0))


def test_a_parquet_file_of_others(ottla: Ottla, tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    rows = (
        "select 'k' || i as key, 'v' || i as value, make_timestamptz(1700000000000000) as timestamp from range(5) t(i)"
    )
    duckdb.sql(f"copy ({rows}) to '{path}' (format parquet, row_group_size 2)")
    ottla("topic", "create", "others", "-p", "1", *KEPT)
    assert ottla("import", "others", str(path), "--skip", "1").exit_code == 0
    assert ottla("consume", "others", "-e", "-f", "%k=%s@%T ").stdout == "".join(
        f"k{n}=v{n}@1700000000000 " for n in range(1, 5)
    )


def test_a_column_of_text_has_its_format(ottla: Ottla, tmp_path: Path) -> None:
    path = str(tmp_path / "f.parquet")
    for topic in ("numbers", "numbers-2"):
        ottla("topic", "create", topic, "-p", "1")
    ottla("produce", "numbers", "--value-format", "int32", stdin="7\n-1\n")
    assert ottla("export", "numbers", path, "--value-format", "int32").exit_code == 0
    assert pq.read_table(path)["value"].to_pylist() == ["7", "-1"]
    assert ottla("import", "numbers-2", path).exit_code == 0
    assert ottla("consume", "numbers-2", "-e", "--value-format", "int32").stdout == "7\n-1\n"
    wrong = ottla("export", "numbers", path, "--value-format", "int64", "--overwrite")
    assert (wrong.exit_code, "the value at partition 0, offset 0 is not of the format int64" in wrong.stderr) == (
        1,
        True,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [(("import", "mixed", "f.txt"), "give --format"), (("import", "mixed", "-", "--format", "parquet"), "name a file"),
     (("import", "mixed", "-", "--repartition", "-p", "1"), "cannot be used"),
     (("export", "mixed", "-", "-o", "json"), "with -"),
     (("import", "mixed", "-", "--transaction-records", "1"), "needs --transactional-id"),
     (("export", "mixed", "-", "--from", "x"), "'x' is not an offset")],
)  # fmt: skip
def test_wrong_usage(ottla: Ottla, mixed: str, words: tuple[str, ...], message: str) -> None:
    done = ottla(*words)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_what_is_not_there(ottla: Ottla, mixed: str, tmp_path: Path) -> None:
    assert ottla("export", "none", "-").exit_code == 3
    missing = ottla("import", "none", "-", stdin='{"value":"1"}\n')
    assert (missing.exit_code, "topic none" in missing.stderr) == (3, True)
    for file_format in FILE_FORMATS:
        absent = ottla("import", mixed, str(tmp_path / f"none.{file_format}"))
        assert (absent.exit_code, "No such file" in absent.stderr) == (1, True), absent.stderr
    assert ottla("export", mixed, str(tmp_path / "no" / "f.csv")).exit_code == 1


def test_parquet_without_pyarrow(ottla: Ottla, mixed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.cli import files

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "ottla.cli.files.parquet_records", raising=False)
    monkeypatch.delattr(files, "parquet_records", raising=False)
    done = ottla("export", mixed, str(tmp_path / "f.parquet"))
    assert (done.exit_code, "pip install 'ottla[arrow]'" in done.stderr) == (1, True)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_ctrl_c_says_how_to_continue(process: Callable[..., object], ottla: Ottla) -> None:
    import signal

    ottla("topic", "create", "interrupted", "-p", "1")
    child = process("import", "interrupted", "-")
    child.stdin.write(b'{"value":"1"}\n{"value":"2"}\n')  # type: ignore[attr-defined]
    child.stdin.flush()  # type: ignore[attr-defined]
    while len(ottla("consume", "interrupted", "-e").stdout.splitlines()) < 2:
        pass
    child.send_signal(signal.SIGINT)  # type: ignore[attr-defined]
    _, stderr = child.communicate(timeout=60)  # type: ignore[attr-defined]
    assert child.returncode == 130  # type: ignore[attr-defined]
    assert (
        b"2 records are written. Correct the cause, then continue with the input from record 3 on: --skip 2" in stderr
    )
