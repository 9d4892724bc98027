"""Finishes or undoes what an interrupted deletion or cleaning left in a partition's directory.

Zone: deterministic. Decides by names only; `recovery` reads the contents. At start, before a log is opened.

A rewritten segment is `.cleaned` (being written), then `.swap` (complete; the segments it replaces may be removed),
then has its final name. So `.deleted` and `.cleaned` files are dropped; `.swap` files are finished, unless a `.cleaned`
file at or below them shows that the set was not complete (a split that was interrupted between its parts).
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.record.header_fields import BASE_OFFSET, LAST_OFFSET_DELTA
from ottla.storage.layout import CLEANED, DELETED, LOG, SNAPSHOT, SWAP, FileName, file_name, parse_file_name
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.segments.scan import walk_headers


def finish_interrupted(home: LogDirContext, directory: str) -> list[str]:
    """Finish or undo interrupted operations; returns the names of the files that are left. Raises Failure."""
    listed = [name for name in home.disk.list(directory) if not name.endswith("/")]
    files = {name: parsed for name in listed if (parsed := parse_file_name(name)) is not None}
    if all(not file.state for file in files.values()):
        return _without_orphans(home, directory, listed, files)
    # `.deleted` files were replaced or removed for good. A `.cleaned` file shows that a set was not complete: `.swap`
    # files at or above its base are dropped, those below it are finished.
    _drop_files(home, directory, [name for name, file in files.items() if file.state == DELETED])
    incomplete = min((file.base_offset for file in files.values() if file.state == CLEANED), default=None)
    swaps = {name: file for name, file in files.items() if file.state == SWAP}
    if swaps:
        home.disk.sync_now(directory)  # a killed process renamed them; no old file is removed before that is durable
        live = {name: file for name, file in files.items() if not file.state}
        _finish_swaps(home, directory, swaps, live, incomplete)
        home.disk.sync_now(directory)
    # Last: without them the next start would take a set that is renamed in part for a complete one.
    _drop_files(home, directory, [name for name, file in files.items() if file.state == CLEANED])
    names = [name for name in home.disk.list(directory) if not name.endswith("/")]
    files = {name: parsed for name in names if (parsed := parse_file_name(name)) is not None and not parsed.state}
    return _without_orphans(home, directory, names, files)


def _drop_files(home: LogDirContext, directory: str, names: Sequence[str]) -> None:
    for name in names:
        home.unlink_path(f"{directory}/{name}")


def _finish_swaps(
    home: LogDirContext, directory: str, swaps: dict[str, FileName], live: dict[str, FileName], incomplete: int | None
) -> None:
    """Replace segments by complete `.swap` files."""
    dropped = [name for name, file in swaps.items() if incomplete is not None and file.base_offset >= incomplete]
    _drop_files_now(home, directory, dropped)
    taken = {name: file for name, file in swaps.items() if name not in dropped}
    replaced: list[str] = []
    # The old segments are found by their offsets: their names were not stored anywhere before the stop.
    for name, file in taken.items():
        if file.kind == LOG:
            end = _end_offset(home, f"{directory}/{name}", file.base_offset)
            replaced += [old for old, live_file in live.items() if file.base_offset <= live_file.base_offset < end]
    _drop_files_now(home, directory, [name for name in dict.fromkeys(replaced) if live[name].kind != SNAPSHOT])
    home.disk.sync_now(directory)  # the new log must not appear beside a part of the old ones
    _rename_swaps(home, directory, [file for file in taken.values() if file.kind == LOG])
    home.disk.sync_now(directory)  # while the log is still a `.swap`, an index without that suffix is an old one
    _rename_swaps(home, directory, [file for file in taken.values() if file.kind != LOG])


def _rename_swaps(home: LogDirContext, directory: str, files: Sequence[FileName]) -> None:
    for file in files:
        name = f"{directory}/{file_name(file.base_offset, file.kind)}"
        home.disk.rename(name + SWAP, name)


def _drop_files_now(home: LogDirContext, directory: str, names: Sequence[str]) -> None:
    for name in names:
        home.disk.unlink_now(f"{directory}/{name}")


def _end_offset(home: LogDirContext, path: str, base_offset: int) -> int:
    """The offset after the last batch of a log file; at least its base + 1, as it always replaces that segment."""
    file = home.disk.open(path, create=False)
    end = base_offset + 1
    for _, header in walk_headers(file, 0, file.size):
        end = max(end, header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1)
    file.close()
    return end


def _without_orphans(home: LogDirContext, directory: str, names: list[str], parsed: dict[str, FileName]) -> list[str]:
    """Drop index files whose log file is missing."""
    bases = {file.base_offset: None for file in parsed.values() if file.kind == LOG}
    orphans = [
        name for name, file in parsed.items() if file.kind not in (LOG, SNAPSHOT) and file.base_offset not in bases
    ]
    _drop_files_now(home, directory, orphans)
    return names if not orphans else [name for name in names if name not in orphans]
