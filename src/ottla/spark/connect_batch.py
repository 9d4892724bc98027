"""The batch that runs in foreachBatch under Spark Connect, found in the checkpoint of its query.

Zone: real. Runs in the server's Python worker. Spark passes to it the rows and the number of the batch, but not the
query, and sets no properties for the tasks of its writes. The checkpoint has both: `metadata` is the query's id,
`offsets/N` exists once batch N is planned, and `commits/N` once it has ended.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Final

from ottla.spark.errors import BadCheckpoint, NoBatch
from ottla.spark.sink.exactly_once import RunningBatch

_LONGEST: Final = 1_000
"""Characters of `metadata` that are read; Spark writes 45."""
_MOST: Final = 100
"""Checkpoints whose query this process remembers."""
_WILDCARDS: Final = re.compile(r"[\\*?\[\]{}]")
_RUN: Final = f"{os.getpid()}-{os.urandom(8).hex()}"
"""A run of the query: Spark starts a worker for each run, and ends it with the run."""
_queries: Final[dict[str, str]] = {}
"""Ids of queries by checkpoint. A checkpoint that is made again belongs to another run, and so to another process."""


def is_remote(session: Any) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def find_batch(session: Any, checkpoint: str | None, batch: int) -> RunningBatch:
    """The batch of the query with this checkpoint, which must be running.

    checkpoint: as in `option("checkpointLocation", …)`. Raises NoBatch, BadCheckpoint and Spark's errors.
    """
    if not checkpoint:
        raise NoBatch(
            "write_batch needs checkpoint=… in a session of Spark Connect, where Spark does not name the query: give "
            "the text that is the checkpointLocation of this query. Nothing was written"
        )
    root = checkpoint.rstrip("/")
    if root not in _queries:
        while len(_queries) >= _MOST:
            del _queries[next(iter(_queries))]
        _queries[root] = _read_query(session, root)
    if not _exists(session, f"{root}/offsets/{batch}") or _exists(session, f"{root}/commits/{batch}"):
        raise NoBatch(
            f"write_batch was called for batch {batch}, which is not running by {root}: call it in the function given "
            "to foreachBatch, with the number that Spark passes to it, and with the checkpointLocation of the same "
            "query. Nothing was written"
        )
    return RunningBatch(_queries[root], _RUN, batch)


def _read_query(session: Any, root: str) -> str:
    """The id in a checkpoint."""
    file = f"{root}/metadata"
    if not _exists(session, file):
        raise NoBatch(
            f"{root} is not the checkpoint of a query: it has no file `metadata`. Give write_batch the text that is "
            "the checkpointLocation of this query. Nothing was written"
        )
    row = _open(session, file).selectExpr(f"substring(value, 1, {_LONGEST}) AS value").head()
    found = parse_query("" if row is None else row["value"])
    if found is None:
        raise BadCheckpoint(f"{file} has no id of a query: it is not as Spark writes it. Nothing was written")
    return found


def parse_query(text: str) -> str | None:
    """The id in the text of `metadata`; None if there is none."""
    try:
        found = json.loads(text)["id"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, str) and RunningBatch.is_name(found) else None


def _exists(session: Any, file: str) -> bool:
    """Whether a file exists, by Spark's analysis of a read, which runs no job."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    try:
        _ = _open(session, file).schema
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return False
        raise
    return True


def _open(session: Any, file: str) -> Any:
    # Spark reads a path as a pattern, which could match the checkpoint of another query.
    return session.read.text(_WILDCARDS.sub(r"\\\g<0>", file))
