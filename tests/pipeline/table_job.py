"""Runs batches in forks that kill themselves (SIGKILL) at the Nth call or return of a step.

Words: a `Query` as JSON. Reads a batch, an attempt and an N per line, and answers `killed` or, when the batch ended
before, `done`.
"""

from __future__ import annotations

import json
import sys

# Imported once, before the forks: each of these libraries takes longer to load than a batch takes.
import pandas as pd  # noqa: F401 - PyArrow looks for it
import pyiceberg.catalog.sql  # noqa: F401
from testbench.step_kills import answer_kills, check_steps, kill_at
from tests.pipeline.table_batches import Query

import ottla.client.columns.columnar_numba
import ottla.tables.batches.delta
import ottla.tables.batches.iceberg
import ottla.tables.batches.parquet  # noqa: F401

STEPS = {
    "write_rows", "take_over", "prepare_commit",
    "send_decision", "commit_decider", "commit_part", "read_decided_files",
    "last_batch", "add_files", "commit_table", "create_write_transaction", "_publish_file", "_write_done",
    "_change_rows", "execute", "_delete_changes",
}  # fmt: skip
FILES = ("ottla/tables/batches/", "ottla/spark/sink/", "pyiceberg/catalog/sql.py", "deltalake/table.py")


def main() -> None:
    check_steps(STEPS, FILES)
    query = Query(*json.loads(sys.argv[1]))

    def run_batch(line: str) -> None:
        batch, attempt, step = map(int, line.split())
        kill_at(step, STEPS, FILES)
        query.run_batch(batch, attempt)

    answer_kills(run_batch)


main()
