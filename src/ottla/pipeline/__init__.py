"""Pipelines: steps from topic to topic on PySpark, exactly once, with retries and dead letters.

Zone: real. Names are imported on first use: the errors and steps need neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.lazy_imports import names_on_demand

if TYPE_CHECKING:
    from ottla.pipeline.checkpoint_changes import CheckpointChange
    from ottla.pipeline.errors import BadOutput, BadPipeline, NullField, Poison, RecordTooLarge, StepFailed
    from ottla.pipeline.functions import Out, Record, map_batches, map_rows
    from ottla.pipeline.pipeline import Pipeline, PipelinePlan, Running, StepPlan
    from ottla.pipeline.progress import StepProgress
    from ottla.pipeline.status import StepStatus
    from ottla.pipeline.table_history import offsets_after_history, topic_with_history
    from ottla.pipeline.table_output.targets import TableTarget, delta, iceberg, parquet

_HOMES: Final = {
    "ottla.pipeline.checkpoint_changes": "CheckpointChange",
    "ottla.pipeline.errors": "BadOutput BadPipeline NullField Poison RecordTooLarge StepFailed",
    "ottla.pipeline.functions": "Out Record map_batches map_rows",
    "ottla.pipeline.pipeline": "Pipeline PipelinePlan Running StepPlan",
    "ottla.pipeline.progress": "StepProgress",
    "ottla.pipeline.status": "StepStatus",
    "ottla.pipeline.table_history": "offsets_after_history topic_with_history",
    "ottla.pipeline.table_output.targets": "TableTarget delta iceberg parquet",
}

__all__ = [
    "BadOutput",
    "BadPipeline",
    "CheckpointChange",
    "NullField",
    "Out",
    "Pipeline",
    "PipelinePlan",
    "Poison",
    "Record",
    "RecordTooLarge",
    "Running",
    "StepFailed",
    "StepPlan",
    "StepProgress",
    "StepStatus",
    "TableTarget",
    "delta",
    "iceberg",
    "map_batches",
    "map_rows",
    "offsets_after_history",
    "parquet",
    "topic_with_history",
]

__getattr__, __dir__ = names_on_demand(globals(), _HOMES)
