"""Runs batches in forks that kill themselves (SIGKILL) at the Nth call or return of a step.

Words: a `Query` as JSON. Reads a batch, an attempt and an N per line, and answers `killed` or, when the batch ended
before, `done`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import Any

# Imported once, before the forks: each of these libraries takes longer to load than a batch takes.
import pandas as pd  # noqa: F401 - PyArrow looks for it
import pyiceberg.catalog.sql  # noqa: F401
from tests.pipeline.table_batches import Query

import ottla.client.columns.columnar_numba
import ottla.tables.batches.delta
import ottla.tables.batches.iceberg
import ottla.tables.batches.parquet  # noqa: F401

STEPS = {
    "write_rows", "take_over", "prepare_commit", "write_file",
    "send_decision", "commit_decider", "commit_part", "read_decided_files",
    "last_batch", "add_files", "commit_table", "create_write_transaction", "_publish_file", "_write_done",
}  # fmt: skip
FILES = ("ottla/tables/batches/", "ottla/spark/sink/", "pyiceberg/catalog/sql.py", "deltalake/table.py")


def kill_at(step: int) -> None:
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


def main() -> None:
    query = Query(*json.loads(sys.argv[1]))
    for line in sys.stdin:
        batch, attempt, step = map(int, line.split())
        child = os.fork()
        if not child:
            os.dup2(sys.stderr.fileno(), 1)  # the answers alone go to standard output
            kill_at(step)
            query.run_batch(batch, attempt)
            sys.setprofile(None)
            sys.stderr.flush()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({0: "done", -signal.SIGKILL: "killed"}.get(status, f"exit {status}"), flush=True)


main()
