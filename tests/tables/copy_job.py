"""Runs `ottla table …` in forks that kill themselves (SIGKILL) at the Nth call or return of a step of a commit.

Words: those of the command. Reads an N per line, and answers `killed` or, when the command ended before, `done`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import Any

import pandas as pd  # noqa: F401 - PyArrow looks for it
import pyarrow as pa
import pyiceberg.catalog.sql  # noqa: F401

# Imported once, before the forks: each of these libraries takes longer to load than a commit takes.
import ottla.cli.commands.table
import ottla.client.columns.columnar_numba
import ottla.client.consumer.arrow_tables
import ottla.tables.copying
import ottla.tables.dead_letters
import ottla.tables.decoded_rows
import ottla.tables.decoding
import ottla.tables.delta
import ottla.tables.iceberg
import ottla.tables.maintenance.delta
import ottla.tables.maintenance.iceberg
import ottla.tables.parquet  # noqa: F401
from ottla.cli.main import cli
from ottla.schemas.avro import AvroSchema
from ottla.schemas.columns.avro import AvroColumns

STEPS = {
    "append_rows", "read_offsets", "commit_table", "_create_table", "write_deltalake", "_write_whole",
    "write_table", "_sync_path", "replace", "append", "_commit_gathered", "write_letters",
    "commit_transaction", "note_commit", "_merge_rows", "_add_columns", "_write_rows", "_write_columns", "execute",
    "init_transactions", "send_offsets_to_transaction",
    "maintain_table", "_copy_rows", "_commit_rewritten", "_drop_stale", "_replace_files", "delete_written", "compact",
    "_expire_snapshots", "named_files", "delete_unnamed", "delete_file", "vacuum",
}  # fmt: skip
FILES = (
    "ottla/tables/",
    "ottla/client/producer/producer.py",
    "deltalake/table.py",
    "pyiceberg/catalog/sql.py",
    "pyiceberg/table/__init__.py",
    "deltalake/writer",
    "pyarrow/parquet",
)


def run_until_step(step: int, words: list[str]) -> None:
    left = step

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal left
        code = frame.f_code
        if event not in {"call", "return"} or code.co_name not in STEPS:
            return
        if any(part in code.co_filename for part in FILES):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    cli.main(words)


def load_kernels() -> None:
    """Load what numba compiled, once: it takes longer than all else that a fork does."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    AvroColumns(AvroSchema(json.dumps(schema))).decode(pa.array([b"\x02a"], pa.binary()))


def main() -> None:
    if "avro" in sys.argv:
        load_kernels()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.dup2(sys.stderr.fileno(), 1)  # the answers alone go to standard output
            run_until_step(int(line), sys.argv[1:])
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({0: "done", -signal.SIGKILL: "killed"}.get(status, f"exit {status}"), flush=True)


main()
