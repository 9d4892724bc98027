"""Arrow types as Spark has them: timestamps in microseconds, times of day as numbers.

Zone: pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def spark_arrow_type(kind: pa.DataType) -> pa.DataType:
    """The type that Spark takes for an Arrow type. Times of day become numbers, as spark-avro reads them."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind):
        return pa.int32() if pa.types.is_time32(kind) else pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(spark_arrow_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, spark_arrow_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(spark_arrow_type(kind.value_type))
    return kind


def to_spark_array(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Any]:
    """An array as one of Spark's type, and a mask of the rows whose values it cannot hold; these are nulls."""
    bad = np.zeros(len(array), np.bool_)
    if array.type == kind:
        return array, bad
    try:
        return array.cast(kind), bad
    except pa.ArrowInvalid:
        for row in range(len(array)):
            bad[row] = not _fits(array[row : row + 1], kind)
        return array.take(pa.array(np.arange(len(array)), mask=bad)).cast(kind), bad


def _fits(row: pa.Array, kind: pa.DataType) -> bool:
    try:
        row.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
