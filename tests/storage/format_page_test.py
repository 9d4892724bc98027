"""docs/storage-format.md describes the bytes: an example directory is read by its text alone."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from tests.storage.conftest import TOPIC_ID

from ottla.config.topic import TopicConfig
from ottla.record.crc import crc32c
from ottla.types import uuid_to_text

PAGE = (Path(__file__).parents[2] / "docs" / "storage-format.md").read_text()
TYPES = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "u32": "I"}
SIZES = {1: "b", 2: "h", 4: "i", 8: "q"}
STEM = f"t-0/{0:020d}"


def section(title: str) -> str:
    return PAGE.split(f"## {title}")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("|")
    ]


def fields(text: str) -> struct.Struct:
    """`version i16 = 0 · producer id i64 …` as a struct."""
    return struct.Struct(">" + "".join(TYPES[kind] for kind in re.findall(r"\b(i8|i16|i32|i64|u32)\b", text)))


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text, re.DOTALL)


@pytest.fixture
def directory(sim, kit):
    """Everything that a broker writes to a directory; stopped cleanly."""
    shelf = kit.Shelf(sim, TopicConfig(index_interval_bytes=1000))
    shelf.manager.claim_directories("cluster", 7)
    for number in range(5):
        shelf.put(kit.batch(2, 900, producer_id=1, producer_epoch=3, base_sequence=number * 2), epoch=2)
    shelf.put(
        kit.batch(1, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True),
        kit.marker(9, commit=False, coordinator_epoch=5),
        epoch=2,
    )
    shelf.log.roll_segment()
    shelf.put(kit.batch(1), epoch=4)
    shelf.log.high_watermark = shelf.log.end_offset
    shelf.log.set_start_offset(1)
    assert shelf.stop() is None
    return sim


def test_batches(directory) -> None:
    table = rows(section("`.log`: record batches (format v2)"))[2:]
    content, at, found = directory.contents(f"{STEM}.log"), 0, []
    while at < len(content):
        values = {}
        for place, size, name, *_ in table:
            if size:
                values[name] = struct.unpack_from(">" + SIZES[int(size)], content, at + int(place))[0]
        end = at + 12 + values["batchLength"]
        assert values["magic"] == 2
        assert values["crc"] & 0xFFFFFFFF == crc32c(content[at + 21 : end])
        found.append(values)
        at = end
    assert at == len(content)
    assert [values["baseOffset"] for values in found] == [0, 2, 4, 6, 8, 10, 11]
    assert {values["partitionLeaderEpoch"] for values in found} == {2}
    assert [values["producerId"] for values in found] == [1] * 5 + [9, 9]
    assert [values["baseSequence"] for values in found] == [0, 2, 4, 6, 8, 0, -1]
    assert [values["attributes"] for values in found[-2:]] == [0x10, 0x30]
    assert [values["recordCount"] for values in found] == [2] * 5 + [1, 1]


def test_indexes(directory) -> None:
    for suffix, entry in ((".index", 8), (".timeindex", 12)):
        title = f"`{suffix}`: {entry} bytes per entry"
        sizes = [int(size) for size, _ in rows(section(title))[2:]]
        assert sum(sizes) == entry
        form = struct.Struct(">" + "".join(SIZES[size] for size in sizes))
        entries = list(form.iter_unpack(directory.contents(STEM + suffix)))
        assert entries == sorted(entries)
        assert entries
    size = len(directory.contents(f"{STEM}.log")) // 5
    assert all(position // size * 2 + 1 <= offset for offset, position in struct.iter_unpack(
        ">ii", directory.contents(f"{STEM}.index")))  # fmt: skip
    assert entries[-1][0] == 1_700_000_000_001


def test_aborted_transactions(directory) -> None:
    text = section("`.txnindex`: 34 bytes per entry")
    form = fields(quoted(text)[0])
    assert form.size == 34
    assert list(form.iter_unpack(directory.contents(f"{STEM}.txnindex"))) == [(0, 9, 10, 11, 12)]


def test_producers(directory) -> None:
    head, entry = (fields(part) for part in quoted(section("`.snapshot`: producers"))[:2])
    assert (head.size, entry.size) == (10, 46)
    content = directory.contents(f"t-0/{12:020d}.snapshot")
    version, crc, count = head.unpack_from(content)
    assert (version, crc, count) == (1, crc32c(content[6:]), 2)
    first, second = entry.iter_unpack(content[head.size :])
    assert first == (1, 3, 9, 9, 1, 1_700_000_000_001, -1, -1)
    assert (second[0], second[1], second[3], second[6:]) == (9, 0, 10, (5, -1))


def test_text_files(directory) -> None:
    lines = directory.contents("recovery-point-offset-checkpoint").decode().split("\n")
    assert lines == ["0", "1", "t 0 13", ""]
    assert directory.contents("log-start-offset-checkpoint") == b"0\n1\nt 0 1\n"
    assert directory.contents("t-0/leader-epoch-checkpoint") == b"0\n2\n2 1\n4 12\n"
    text = section("Checkpoints")
    assert "cleaner-offset-checkpoint | `topic partition offset`" in text
    metadata = directory.contents("t-0/partition.metadata").decode()
    assert metadata == f"version: 0\ntopic_id: {uuid_to_text(TOPIC_ID)}"
    assert len(uuid_to_text(TOPIC_ID)) == 22
    meta = dict(line.split("=") for line in directory.contents("meta.properties").decode().split("\n") if "=" in line)
    assert meta.keys() == {"version", "node.id", "cluster.id", "directory.id"}
    assert all(f"`{key}" in text for key in meta)
    assert directory.contents(".kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":-1}'


def test_every_file_of_the_directory_is_on_the_page(directory) -> None:
    tree = PAGE.split("## `.log`")[0]
    for path, _ in directory.drives[0].walk_files():
        name = re.sub(r"\d{20}", "", path.rpartition("/")[2])
        assert name in tree, path
    for suffix in (
        ".deleted",
        ".cleaned",
        ".swap",
        ".tmp",
        "-future/",
        "-delete/",
        "-stray/",
        "cleaner-offset-checkpoint",
    ):
        assert suffix in PAGE, suffix
