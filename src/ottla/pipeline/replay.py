"""A second run of a pipeline beside the first: the same steps from a time on, into topics of their own.

Zone: real. The first pipeline goes through no change: the second has another group, other transactional ids and other
retry topics, as if its file had the new name. `count_outputs` compares both by counting committed records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import EARLIEST, LATEST
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, values_of
from ottla.client.fetching.batches import visible_batches
from ottla.client.fetching.fetch import fetch_range
from ottla.pipeline.errors import BadPipeline
from ottla.pipeline.pipeline import Pipeline
from ottla.pipeline.steps import Step, sort_steps
from ottla.types import TopicPartition

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_STARTS: Final = frozenset({"startingtimestamp", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy"})


class OutputCount(NamedTuple):
    """How many committed records two outputs of a step have."""

    step: str
    output: str
    records: int
    """Of the first pipeline, written since the time from which the second one reads."""
    dead: int
    """Its dead letters since then."""
    replayed_output: str
    replayed_records: int
    replayed_dead: int


def replay_pipeline(pipeline: Pipeline, name: str, from_ms: int) -> Pipeline:
    """The same steps with another name, that read from a time (milliseconds since 1970) and write to other topics.

    Outputs and dead letters get the suffix `.<name>`; a step that reads the output of another one reads the other's
    new output, from its beginning. Raises BadPipeline for an invalid name, and for that of the pipeline itself.
    """
    if not _NAME.fullmatch(name) or name == pipeline.name:
        raise BadPipeline(f"the name of a replay must be another one than {pipeline.name}, of letters, digits, . _ -")
    made = {step.to for step in pipeline.steps}
    return pipeline.with_changed_steps(lambda step: _replay_step(step, name, from_ms, made), pipeline.settings, name)


def _replay_step(step: Step, name: str, from_ms: int, made: set[str]) -> Step:
    if step.table is not None:
        raise BadPipeline(
            f"step {step.name} writes {step.to}, and a replay writes topics only: run the step in another pipeline, "
            "with the option startingTimestamp, into a new table"
        )
    sources = tuple(f"{one}.{name}" if one in made else one for one in step.sources)
    options = {key: value for key, value in step.options.items() if key.lower() not in _STARTS}
    if not made.issuperset(step.sources):
        options |= {"startingTimestamp": str(from_ms), "startingOffsetsByTimestampStrategy": "latest"}
    policy = step.policy
    if policy is not None and policy.dead is not None:
        policy = replace(policy, dead=f"{policy.dead}.{name}")
    # The prefixes are those that the name gives in the file: after the switch, the checkpoint fits to it.
    base = {one: one if one == name else f"{one}.{name}" for one in sources}
    return replace(
        step, sources=sources, to=f"{step.to}.{name}", policy=policy, base=base, start="earliest", options=options
    )


def count_outputs(pipeline: Pipeline, replayed: Pipeline, from_ms: int) -> list[OutputCount]:
    """Count the records of both outputs of each step, by reading the topics. Raises ClientError."""
    found = []
    with pipeline.cluster() as cluster:
        for step, other in zip(sort_steps(pipeline.steps), sort_steps(replayed.steps), strict=True):
            found.append(
                OutputCount(
                    step.name,
                    step.to,
                    _count_records(cluster, [step.to], from_ms),
                    _count_records(cluster, step.dead_topics, from_ms),
                    other.to,
                    _count_records(cluster, [other.to], None),
                    _count_records(cluster, other.dead_topics, None),
                )
            )
    return found


def _count_records(cluster: Cluster, topics: Iterable[str], from_ms: int | None) -> int:
    """The committed records of topics that exist, from a time on, by the headers of their batches."""
    total = 0
    for topic, view in Admin(cluster).describe_topics(list(topics)).items():
        if not isinstance(view, ClientError):
            total += _count_of_partitions(
                cluster, [TopicPartition(topic, number) for number in view.partitions], from_ms
            )
    return total


def _count_of_partitions(cluster: Cluster, tps: Sequence[TopicPartition], from_ms: int | None) -> int:
    admin = Admin(cluster)
    starts = values_of(admin.list_offsets(dict.fromkeys(tps, EARLIEST if from_ms is None else from_ms)))
    ends = values_of(admin.list_offsets(dict.fromkeys(tps, LATEST)))
    total = 0
    for tp, start in starts.items():
        if start.offset < 0:
            continue  # no record is as late as that
        for fetched in fetch_range(cluster, tp, start.offset, ends[tp].offset):
            for _, header in visible_batches(fetched.records, tp, fetched.aborted):
                before = max(0, start.offset - header.base_offset)
                total += max(0, header.record_count - before)
    return total
