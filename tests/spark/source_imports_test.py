"""What is loaded in the process that Spark starts for every streaming query."""

from __future__ import annotations

import subprocess
import sys

NOT_FOR_PLANNING = (
    "pyarrow.compute",
    "numba",
    "ottla.client.producer.producer",
    "ottla.spark.sink.writers",
    "ottla.spark.source.reading",
)


def test_the_plan_of_a_query_loads_nothing_that_reads_rows_or_writes_them() -> None:
    script = f"""
import sys
from ottla.spark.source.source import OttlaSource
OttlaSource({{"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"}}).streamReader(None)
print([name for name in {NOT_FOR_PLANNING} if name in sys.modules])
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert told.stdout == "[]\n", told.stderr
