"""Compares look-ups of a log (by offset, by time, of aborted transactions) with a plain walk over its content.

Zone: deterministic. Calls the log like readers do.
"""

from __future__ import annotations

from ottla.record.batch import HEADER_SIZE, LOG_OVERHEAD, unpack_header
from ottla.storage.indexes.timestamps import offset_for
from ottla.storage.log import Log
from testbench.crash import compacted
from testbench.crash.site import Site, is_compacted
from testbench.crash.story import STAMP


def read(log: Log, offset: int) -> bytes:
    """All batches from an offset on, read like fetches do."""
    parts = []
    while offset < log.end_offset:
        region = log.read(offset, 3000, log.end_offset, warmed=True)
        if region is None:
            break
        piece = bytearray(region.size)
        region.file.read_now(region.pos, memoryview(piece))
        parts.append(bytes(piece))
        for header in headers_in(piece):
            offset = header[0] + header[6] + 1
    return b"".join(parts)


def headers_in(content: bytes | bytearray) -> list[tuple[int, ...]]:
    """The headers of consecutive batches."""
    at, found = 0, []
    while at + HEADER_SIZE <= len(content):
        found.append(unpack_header(content, at))
        if found[-1][1] < 0:
            break
        at += found[-1][1] + LOG_OVERHEAD
    return found


def lookups(site: Site, log: Log, content: bytes) -> list[str]:
    """Compare look-ups by offset, by time and of aborted transactions with the content of the log."""
    headers = headers_in(content)
    wrong = _by_offset(log, headers)
    if is_compacted(log.tp):
        return wrong + _by_time_of_records(site, log, content)
    for stamp in sorted({header[8] for header in headers})[:: max(1, len(headers) // 3)]:
        wrong += _by_time(site, log, headers, stamp)
    return wrong + _aborted(log, content, headers)


def _by_offset(log: Log, headers: list[tuple[int, ...]]) -> list[str]:
    wrong = []
    before = log.start_offset
    for header in headers:
        offset = max(header[0], log.start_offset)
        before, gap = header[0] + header[6] + 1, before
        for wanted in {offset, header[0] + header[6], min(offset, gap)}:
            region = log.read(wanted, 1, log.end_offset, warmed=True)
            found = -1 if region is None else _offset_at(region.file, region.pos)
            if found != header[0]:
                wrong.append(f"a look-up of offset {wanted} finds the batch at {found}, not {header[0]}")
    return wrong


def _offset_at(file: object, position: int) -> int:
    head = bytearray(8)
    file.read_now(position, memoryview(head))  # type: ignore[attr-defined]
    return int.from_bytes(head, "big")


def _by_time_of_records(site: Site, log: Log, content: bytes) -> list[str]:
    stamps = sorted({record.timestamp for _, records in compacted.batches_in(content) for record in records})
    for stamp in stamps[:: max(1, len(stamps) // 3)]:
        answers: list[object] = []
        site.process.run_turn(offset_for, log.segments, log.start_offset, stamp, answers.append, log.home.workers)
        site.settle()
        expected = compacted.first_at(content, log.start_offset, stamp)
        if answers != [expected]:
            return [f"a look-up of time {stamp - STAMP} answers {answers}, not {expected}"]
    return []


def _by_time(site: Site, log: Log, headers: list[tuple[int, ...]], stamp: int) -> list[str]:
    answers: list[object] = []
    site.process.run_turn(offset_for, log.segments, log.start_offset, stamp, answers.append, log.home.workers)
    site.settle()
    first = next((header for header in headers if header[8] >= stamp), None)
    (answer,) = answers
    if first is None or not isinstance(answer, tuple):
        return [] if first is None and answer is None else [f"a look-up of time {stamp - STAMP} answers {answer}"]
    # Timestamps in a batch rise by one from its base timestamp.
    index = max(0, stamp - first[7])
    while first[0] + index < log.start_offset:
        index += 1
    expected = (first[7] + index, first[0] + index)
    if tuple(answer) != expected and index <= first[6]:
        return [f"a look-up of time {stamp - STAMP} answers {tuple(answer)}, not {expected}"]
    return []


def _aborted(log: Log, content: bytes, headers: list[tuple[int, ...]]) -> list[str]:
    """Compare the list of aborted transactions with those that began and were aborted in the content."""
    opened: dict[int, int] = {}
    expected = []
    position = 0
    for header in headers:
        producer = header[9]
        if header[5] & 0x20:
            kind = content[position + HEADER_SIZE + 7 : position + HEADER_SIZE + 9]
            first = opened.pop(producer, -1)
            if kind == b"\x00\x00" and first >= 0:
                expected.append((producer, first, header[0]))
        elif header[5] & 0x10:
            opened.setdefault(producer, header[0])
        position += header[1] + LOG_OVERHEAD
    there = [
        (entry[0], entry[1], entry[2]) for entry in log.segments.aborted_transactions(log.start_offset, log.end_offset)
    ]
    missing = [entry for entry in expected if entry not in there]
    extra = [entry for entry in there if entry not in expected and entry[1] >= log.start_offset]
    return [f"the aborted transactions are {there}, not {expected}"] if missing or extra else []
