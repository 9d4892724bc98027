"""Runs `ottla table …` in forks that kill themselves (SIGKILL) at the Nth call or return of a step of a commit.

Words: those of the command. Reads an N per line, and answers `killed` or, when the command ended before, `done`.
"""

from __future__ import annotations

import json
import sys

import pandas as pd  # noqa: F401 - PyArrow looks for it
import pyarrow as pa
import pyiceberg.catalog.sql  # noqa: F401
from testbench.step_kills import answer_kills, check_steps, kill_at

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
    "append_rows", "read_offsets", "commit_table", "create_iceberg", "create_delta", "write_deltalake", "_write_whole",
    "write_table", "sync_path", "append", "_commit_gathered", "write_letters",
    "commit_transaction", "note_commit", "_merge_rows", "_add_columns", "_write_rows", "_write_columns", "execute",
    "init_transactions", "send_offsets_to_transaction",
    "maintain_table", "_copy_rows", "_commit_rewritten", "_drop_stale", "_replace_files", "delete_written", "compact",
    "_expire_snapshots", "named_files", "delete_unnamed", "vacuum",
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


def run_until_step(line: str) -> None:
    kill_at(int(line), STEPS, FILES)
    cli.main(sys.argv[1:])


def load_kernels() -> None:
    """Load what numba compiled, once: it takes longer than all else that a fork does."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    AvroColumns(AvroSchema(json.dumps(schema))).decode(pa.array([b"\x02a"], pa.binary()))


def main() -> None:
    check_steps(STEPS, FILES)
    if "avro" in sys.argv:
        load_kernels()
    answer_kills(run_until_step)


main()
