"""Steps that write a table: their arguments, and the rows that go to the table or to topics, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.pipeline.routing_test import batch

from ottla.pipeline import BadPipeline, Pipeline, StepFailed, TableTarget, delta, iceberg, map_rows, parquet
from ottla.pipeline.functions import ROWS_TYPE
from ottla.pipeline.queries import scope_without_plan
from ottla.pipeline.replay import replay_pipeline
from ottla.pipeline.routing import Router
from ottla.pipeline.steps import topics_of
from ottla.pipeline.table_output.rows import TableRouter, split_rows
from ottla.pipeline.table_output.targets import decode_target

LAKE = iceberg("lake.orders", catalog="main", properties={"uri": "sqlite://"})


def pipeline(function: Any, **step: Any) -> Pipeline:
    p = Pipeline("shop")
    p.step("orders", to=LAKE, name="one", **step)(function)
    return p


def frame_rows(*reasons: str | None) -> pa.RecordBatch:
    """Rows of a DataFrame step as they come to its router."""
    read = batch(*(b"%d" % number for number in range(len(reasons))))
    source = pa.StructArray.from_arrays(read.columns, names=read.schema.names)
    row = pa.array([{"n": number, "deep": {"s": str(number)}} for number in range(len(reasons))])
    columns = {"topic": pa.array([str(LAKE)] * len(reasons)), **dict.fromkeys(ROWS_TYPE.names)}
    nothing = {each.name: pa.nulls(len(reasons), each.type) for each in ROWS_TYPE}
    found = {**columns, **nothing, "row": row, "_error": pa.array(reasons, pa.string()), "_source": source}
    fields = [pa.field(name, array.type, nullable=name != "topic") for name, array in found.items()]
    return pa.RecordBatch.from_arrays(list(found.values()), schema=pa.schema(fields))


def test_rows_of_a_dataframe_go_to_the_table_and_failed_ones_to_topics() -> None:
    (step,) = pipeline(lambda frame: frame, dead="graves").steps
    made = list(TableRouter(step, "shop")([frame_rows(None, "odd", None)]))
    assert made[0].schema == made[1].schema, "Spark reads one schema"
    rows, others = split_rows(pa.Table.from_batches(made).combine_chunks().to_batches()[0], step.to)
    assert rows is not None
    assert rows.to_pylist() == [{"n": 0, "deep": {"s": "0"}}, {"n": 2, "deep": {"s": "2"}}]
    assert others.select(["topic", "value"]).to_pylist() == [{"topic": "graves", "value": b"1"}]
    (only,) = TableRouter(step, "shop")([frame_rows("odd")])
    assert split_rows(only, step.to)[0] is None


def test_a_failed_row_without_a_policy_stops_the_step() -> None:
    (step,) = pipeline(lambda frame: frame).steps
    with pytest.raises(StepFailed, match="orders-1, offset 100: StepSaid: odd"):
        list(TableRouter(step, "shop")([frame_rows("odd")]))


def test_records_have_their_own_columns() -> None:
    def upper(record: Any) -> bytes:
        return bytes(record.value.upper())

    (step,) = pipeline(map_rows(upper), retries=["30s"]).steps
    good, failed = Router(step, "shop")([batch(b"a", None)])
    rows, others = split_rows(good, step.to)
    assert rows is not None
    assert rows.to_pylist() == [{"key": b"k0", "value": b"A", "headers": []}]
    assert not others.num_rows
    assert split_rows(failed, step.to)[1].column("topic").to_pylist() == ["orders.shop.retry-1"]


def test_a_table_is_no_topic_and_its_unit_is_the_batch() -> None:
    (step,) = pipeline(lambda frame: frame, dead="graves").steps
    assert [each.name for each in topics_of([step])] == ["orders", "graves"]
    assert (scope_without_plan(step).mode, scope_without_plan(step).offsets) == ("batch", False)
    assert step.table is not None
    assert decode_target(step.table.encode_text()) == LAKE == TableTarget("iceberg", *list(vars(LAKE).values())[1:])
    assert [str(each) for each in (delta("s3://lake"), parquet("/data"))] == ["delta s3://lake", "parquet /data"]


def test_options_that_a_table_cannot_have_are_refused() -> None:
    p = Pipeline("refused")
    wrong: dict[str, Any] = {
        "exactly_once": "off", "offsets_in_transaction": "true", "output_mode": "complete", "required": ["key"],
    }  # fmt: skip
    for option, value in wrong.items():
        with pytest.raises(BadPipeline, match=f"step one: {option}=.* is not possible with a table"):
            p.step("orders", to=delta("/data/lake"), name="one", **{option: value})(lambda frame: frame)
    with pytest.raises(BadPipeline, match="needs the name of the table"):
        delta("")
    p.step("orders", to=delta("/data/lake"), name="one")(lambda frame: frame)
    with pytest.raises(BadPipeline, match="step one writes delta /data/lake, and a replay writes topics only"):
        replay_pipeline(p, "second", 0)


def test_partitions_and_upserts_that_a_step_cannot_have_are_refused() -> None:
    def rows(record: Any) -> bytes:
        return bytes(record.value)

    with pytest.raises(BadPipeline, match="delta /lake: partition_by must be none, day, hour, not 'week'"):
        delta("/lake", partition_by="week")
    for wrong in ("bucket[0]", "bucket[16", "bucket[12345]"):
        with pytest.raises(BadPipeline, match=r"must be none, day, hour, bucket\[1\] to bucket\[9999\], not 'bucket"):
            iceberg("lake.orders", partition_by=wrong)
    with pytest.raises(BadPipeline, match="must be none, day, hour, not 'bucket"):
        delta("/lake", partition_by="bucket[16]")
    for option, value in (("upsert", True), ("partition_by", "day")):
        with pytest.raises(BadPipeline, match=f"parquet /lake: {option} is not possible with a folder of files"):
            TableTarget("parquet", "/lake", **{option: value})  # type: ignore[arg-type]
    p = Pipeline("refused")
    with pytest.raises(BadPipeline, match="step rows: partition_by=day needs a column timestamp"):
        p.step("orders", to=delta("/lake", partition_by="day"))(map_rows(rows))
    with pytest.raises(BadPipeline, match="step rows: a retry would replace the row of its key by an older one"):
        p.step("orders", to=delta("/lake", upsert=True), retries=["30s"])(map_rows(rows))
    for option in ("minPartitions", "maxRecordsPerPartition"):
        with pytest.raises(BadPipeline, match=f"step rows: the option {option} is not possible with an upsert"):
            p.step("orders", to=delta("/lake", upsert=True), options={option: "9"})(map_rows(rows))
    p.step("orders", to=iceberg("lake.orders", partition_by="bucket[16]", upsert=True), dead="graves")(map_rows(rows))
    (step,) = p.steps
    assert step.table is not None
    assert decode_target(step.table.encode_text()) == step.table
