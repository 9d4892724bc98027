"""Explains how a pipeline continues over a checkpoint: which steps begin, continue, or are refused, and why.

Zone: real. `checkpoint_files` reads the checkpoint; here it is compared with the steps as they are now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ottla.pipeline.checkpoint_files import SHUFFLE_PARTITIONS, CheckpointFiles, StepCheckpoint, files_of, read_step
from ottla.pipeline.scope import stateful_nodes
from ottla.pipeline.steps import Step
from ottla.spark.errors import BadCheckpoint

OPERATORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "stateStoreSave": "Aggregate",
        "dedupe": "Deduplicate",
        "dedupeWithinWatermark": "DeduplicateWithinWatermark",
        "symmetricHashJoin": "Join",
        "globalLimit": "GlobalLimit",
    }
)
"""Spark's names of stateful operators in a checkpoint, and of the nodes of a plan that they come from. State of other
operators is not compared here; Spark compares it when the query starts."""

MAX_DIRECTORIES: Final = 1_000
"""Directories of a checkpoint that are looked at, besides those of the steps."""
_BEGINNINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "earliest": "with the earliest records",
        "latest": "with records that are written from now on",
        "group": "where its consumer group stands",
    }
)


class CheckpointChange(NamedTuple):
    """One thing that happens to a step when the pipeline runs over its checkpoint."""

    step: str
    effect: str
    """begins, continues, changes, unused (a checkpoint without a step) or refused (the run stops with an error)."""
    reason: str


class Session(NamedTuple):
    """The parts of Spark's session that matter; None where Spark was not asked."""

    shuffle_partitions: int | None = None
    operators: Mapping[str, Sequence[str]] = MappingProxyType({})
    """By step: the nodes of its plan that keep state (`scope.stateful_nodes`)."""


def explain_checkpoint(
    steps: Sequence[Step], checkpoint: str, spark: Any, frames: Mapping[str, Any]
) -> list[CheckpointChange]:
    """How the steps of a pipeline continue over a checkpoint. Changes nothing.

    checkpoint: a local directory or a URL. spark: the session, or None: then state is not compared. frames: by step,
    the DataFrames of their functions. Raises BadCheckpoint.
    """
    files = files_of(checkpoint, spark)
    names = [*(step.name for step in steps), *files.names("")[:MAX_DIRECTORIES]]
    known_steps = {step.name for step in steps}
    stored = {name: _read_stored(files, name, strict=name in known_steps) for name in dict.fromkeys(names)}
    if spark is None:
        return explain_changes(steps, stored, Session())
    nodes = {name: stateful_nodes(frame) for name, frame in frames.items()}
    known = {name: found for name, found in nodes.items() if found is not None}
    return explain_changes(steps, stored, Session(int(spark.conf.get(SHUFFLE_PARTITIONS)), known))


def _read_stored(files: CheckpointFiles, name: str, *, strict: bool) -> StepCheckpoint | None:
    """The checkpoint under a name. Not strict: a directory of no step, which may be anything, raises nothing."""
    try:
        return read_step(files, name)
    except BadCheckpoint:
        if strict:
            raise
        return None


def explain_changes(
    steps: Iterable[Step], stored: Mapping[str, StepCheckpoint | None], session: Session
) -> list[CheckpointChange]:
    """How each step continues, in the order of the steps; then checkpoints that no step uses.

    stored: by name, of the steps and of the other directories in the checkpoint.
    """
    now = {step.name: step for step in steps}
    unused = {name: kept for name, kept in stored.items() if name not in now and kept is not None and kept.planned >= 0}
    found: list[CheckpointChange] = []
    for name, step in now.items():
        kept = stored.get(name)
        if kept is None or kept.planned < 0:
            found.append(_explain_beginning(step, unused))
        else:
            found += _explain_step(step, kept, session)
    for name in sorted(unused):
        reason = "no step has this name: its progress stays there unused, and is continued if the step comes back"
        found.append(CheckpointChange(name, "unused", reason))
    return found


def _explain_beginning(step: Step, unused: Mapping[str, StepCheckpoint]) -> CheckpointChange:
    reason = f"no checkpoint: it begins {_BEGINNINGS[step.start]}" if step.start in _BEGINNINGS else "no checkpoint"
    same = sorted(name for name, kept in unused.items() if kept.topics & set(step.sources))
    if same:
        reason += (
            f"; if it is {same[0]} under another name, it writes again what that has written: keep the name {same[0]}"
        )
    return CheckpointChange(step.name, "begins", reason)


def _explain_step(step: Step, kept: StepCheckpoint, session: Session) -> Iterator[CheckpointChange]:
    """What is refused comes alone; otherwise how the step continues, and what is different from then on."""
    refused = [*_refused_topics(step, kept), *_refused_state(step, kept, session)]
    if refused:
        yield from (CheckpointChange(step.name, "refused", reason) for reason in refused)
        return
    yield CheckpointChange(step.name, "continues", _position_text(kept))
    yield from (CheckpointChange(step.name, "changes", reason) for reason in _changes(step, kept, session))


def _position_text(kept: StepCheckpoint) -> str:
    if kept.planned > kept.ended:
        return (
            f"batch {kept.planned} has not ended: its offsets stay, rows that are not written yet are made by the "
            "function as it is now"
        )
    return f"the last batch that has ended is {kept.ended:,}"


def _refused_topics(step: Step, kept: StepCheckpoint) -> Iterator[str]:
    # 1. All topics are others: it is the checkpoint of another query. 2. Some are gone: their records would be skipped.
    gone = sorted(kept.topics - set(step.places))
    if kept.topics and not kept.topics & set(step.places):
        yield f"BadCheckpoint: it is of a query that read {', '.join(gone)}: give the step another name"
    elif gone and not _ignores_loss(step):
        yield (
            f"DataLoss: {', '.join(gone)} was read until now: let the step as it was read it to the end, then set the "
            "option failOnDataLoss=false for one run"
        )


def _ignores_loss(step: Step) -> bool:
    return any(key.lower() == "failondataloss" and str(value).lower() == "false" for key, value in step.options.items())


def _refused_state(step: Step, kept: StepCheckpoint, session: Session) -> Iterator[str]:
    if kept.operators is None or step.name not in session.operators or not OPERATORS.keys() >= set(kept.operators):
        return
    # A limit keeps state in the mode append only.
    nodes = [each for each in session.operators[step.name] if each != "GlobalLimit" or step.output_mode == "append"]
    now, stored = Counter(nodes), Counter(OPERATORS[name] for name in kept.operators)
    # A join has several stores, and so is there several times.
    if now.keys() != stored.keys() or any(stored[kind] != now[kind] for kind in now if kind != "Join"):
        yield (
            f"Spark: its state is that of {_list_text(stored)}, and the plan needs that of {_list_text(now)}: give the "
            "step another name, with which it begins anew"
        )


def _list_text(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in sorted(kinds.items())) or "nothing"


def _changes(step: Step, kept: StepCheckpoint, session: Session) -> Iterator[str]:
    added = sorted(set(step.places) - kept.topics)
    if added:
        yield f"{', '.join(added)} is new to it, and is read from its beginning"
    gone = sorted(kept.topics - set(step.places))
    if gone:
        yield f"{', '.join(gone)} is not read any more (failOnDataLoss=false)"
    number, kept_number = session.shuffle_partitions, kept.shuffle_partitions
    if kept.operators and number is not None and kept_number is not None and number != kept_number:
        yield f"its state has {kept_number} partitions, whatever spark.sql.shuffle.partitions is ({number} here)"
