"""Fetch the readers of tables.

Zone: real.
"""

from __future__ import annotations

import sys

from testbench.apache_kafka.packages import BenchError, fetch_table_jars
from testbench.table_readers import DUCKDB, SPARK, fetch_reader

try:
    fetch_reader("duckdb", DUCKDB)
    if "--spark" in sys.argv[1:]:
        fetch_reader("spark", SPARK)
        fetch_table_jars()
except BenchError as error:
    sys.exit(f"setup: {error}")
