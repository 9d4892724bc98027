"""Checks a whole log directory: its checkpoints, its owner, and every partition in it.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.storage.checkpoints import (
    CorruptCheckpoint,
    format_offsets,
    parse_clean_shutdown,
    parse_meta_properties,
    parse_offsets,
)
from ottla.storage.layout import (
    CLEAN_SHUTDOWN,
    CLEANED_UNTIL,
    HIGH_WATERMARKS,
    LOG,
    LOG_STARTS,
    META_PROPERTIES,
    METADATA_LOGS,
    RECOVERY_POINTS,
    parse_file_name,
    parse_log_dir,
)
from ottla.storage.verify.findings import Action, Finding, Remove, Report, Write
from ottla.storage.verify.partition import Counted, Marks, Outcome, PartitionCheck
from ottla.storage.verify.reading import Source, content_of
from ottla.types import TopicPartition

CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANED_UNTIL)
_KNOWN = (*CHECKPOINTS, META_PROPERTIES, CLEAN_SHUTDOWN, ".lock")
_ON_THE_WAY = ("-delete", "-future", "-stray")
_HARMLESS_MISSING = "the next start does without it, and takes longer"


def is_partition(source: Source) -> bool:
    """Whether the directory is that of one partition: it has segments."""
    return any((file := parse_file_name(name)) is not None and file.kind == LOG for name in source.names(""))


def verify_directory(source: Source, counted: Counted, said: Callable[[str], None] = lambda _: None) -> Report:
    """Check a log directory, or one partition's. `said` gets the name of each partition in turn. Raises
    OSError."""
    report = Report()
    if is_partition(source):
        report.logs = 1
        PartitionCheck(source, "", Marks(), report, counted).run_check()
        return report
    _Directory(source, report, counted, said).run_check()
    return report


class _Directory:
    """One run over a log directory."""

    def __init__(self, source: Source, report: Report, counted: Counted, said: Callable[[str], None]) -> None:
        self.source = source
        self.report = report
        self.counted = counted
        self.on_partition = said
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        self.names = list(source.names(""))

    def run_check(self) -> None:
        clean = self._check_clean_mark()
        self._check_meta()
        for name in CHECKPOINTS:
            self.offsets[name] = self._read_checkpoint(name, clean=clean)
        outcomes: dict[TopicPartition, Outcome] = {}
        for name in self.names:
            if not name.endswith("/"):
                if name not in _KNOWN and not name.endswith(".tmp"):
                    self._add_finding(name, "stranger", "not a file of a log directory", harmless=True)
                continue
            tp = parse_log_dir(name[:-1])
            if tp is not None:
                self.on_partition(name[:-1])
                self.report.logs += 1
                outcomes[tp] = PartitionCheck(
                    self.source, name[:-1], self._marks_of(tp, clean=clean), self.report, self.counted
                ).run_check()
            elif name.rstrip("/") not in METADATA_LOGS:
                moving = name.rstrip("/").endswith(_ON_THE_WAY)
                text = "a partition that is moved or removed" if moving else "not a partition's directory"
                self._add_finding(name, "unfinished" if moving else "stranger", text, harmless=True)
        for name in CHECKPOINTS:
            self._check_offsets(name, outcomes)

    def _add_finding(
        self,
        name: str,
        kind: str,
        message: str,
        repair: str = "",
        actions: Sequence[Action] = (),
        *,
        harmless: bool = False,
    ) -> None:
        self.report.findings.append(Finding(name, kind, message, repair, tuple(actions), None, harmless))

    def _read_file(self, name: str) -> bytes | None:
        try:
            return content_of(self.source, name)
        except OSError as error:
            self._add_finding(name, "unreadable", str(error.strerror))
            return None

    def _check_clean_mark(self) -> bool:
        if CLEAN_SHUTDOWN not in self.names or (content := self._read_file(CLEAN_SHUTDOWN)) is None:
            return False
        try:
            parse_clean_shutdown(content)
        except CorruptCheckpoint as error:
            self._add_finding(
                CLEAN_SHUTDOWN, "clean stop", str(error), "removed: the next start recovers", [Remove(CLEAN_SHUTDOWN)]
            )
            return False
        return True

    def _check_meta(self) -> None:
        if META_PROPERTIES not in self.names:
            self._add_finding(
                META_PROPERTIES,
                "metadata",
                "it is missing: this is not a broker's directory, or a new one",
                harmless=True,
            )
            return
        content = self._read_file(META_PROPERTIES)
        try:
            if content is not None:
                parse_meta_properties(content)
        except CorruptCheckpoint as error:
            text = "write it again with the broker's node.id and its cluster's id, which own the records"
            self._add_finding(META_PROPERTIES, "metadata", f"{error}; {text}")

    def _read_checkpoint(self, name: str, *, clean: bool) -> dict[TopicPartition, int]:
        if name not in self.names:
            if clean and name in (RECOVERY_POINTS, HIGH_WATERMARKS):
                self._add_finding(name, "checkpoint", f"it is missing; {_HARMLESS_MISSING}", harmless=True)
            return {}
        content = self._read_file(name)
        try:
            return {} if content is None else parse_offsets(content)
        except CorruptCheckpoint as error:
            self._add_finding(name, "checkpoint", str(error), f"removed: {_HARMLESS_MISSING}", [Remove(name)])
            return {}

    def _marks_of(self, tp: TopicPartition, *, clean: bool) -> Marks:
        return Marks(
            self.offsets[LOG_STARTS].get(tp, -1),
            self.offsets[RECOVERY_POINTS].get(tp, -1),
            self.offsets[HIGH_WATERMARKS].get(tp, -1),
            tp in self.offsets[CLEANED_UNTIL] or tp.topic.startswith("__"),
            clean,
        )

    def _check_offsets(self, name: str, outcomes: dict[TopicPartition, Outcome]) -> None:
        """Find entries above a log's end: they are of another log, or of records that are lost."""
        entries = self.offsets[name]
        beyond = [tp for tp, outcome in sorted(outcomes.items()) if entries.get(tp, -1) > outcome.end]
        if not beyond:
            return
        # Without an entry recovery reads more of the log; a wrong one would have it trust bytes, or report a loss.
        kept = {tp: offset for tp, offset in entries.items() if tp not in beyond}
        told = ", ".join(f"{tp} ends at {outcomes[tp].end}, the entry is {entries[tp]}" for tp in beyond)
        self._add_finding(name, "checkpoint", told, "these entries are removed", [Write(name, format_offsets(kept))])
