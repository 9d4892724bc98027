"""The topics of a pipeline on its cluster: which are there, which are made.

Zone: real. Which topics a pipeline needs is decided in `steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.client.admin import Admin
from ottla.client.admin_types import NewTopic
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError
from ottla.client.metadata import TopicView
from ottla.errors import ErrorCode
from ottla.pipeline.errors import BadPipeline
from ottla.pipeline.steps import Wanted


class TopicPlan(NamedTuple):
    """A topic that a pipeline needs."""

    name: str
    role: str
    exists: bool
    partitions: int
    """As it has them, or would get."""
    configs: dict[str, str]
    """Of a topic that would be made."""


def plan_topics(cluster: Cluster, wanted: Sequence[Wanted]) -> list[TopicPlan]:
    """Compare with the cluster. Raises BadPipeline for a source that is missing, ClientError."""
    counts: dict[str, int] = {}
    found: list[TopicPlan] = []
    views = Admin(cluster).describe_topics([each.name for each in wanted])
    for each in wanted:
        view = views[each.name]
        if isinstance(view, ClientError) and not _is_unknown(view):
            raise view
        exists = isinstance(view, TopicView)
        if not exists and each.role == "source":
            raise BadPipeline(
                f"the topic {each.name} does not exist: create it (ottla topic create {each.name}), or mend the name"
            )
        have = len(view.partitions) if isinstance(view, TopicView) else 0
        counts[each.name] = have or each.partitions or max((counts.get(like, 1) for like in each.like), default=1)
        found.append(TopicPlan(each.name, each.role, exists, counts[each.name], {} if exists else dict(each.configs)))
    return found


def make_topics(cluster: Cluster, plans: Iterable[TopicPlan]) -> list[str]:
    """Make those that are not there; their names. Raises ClientError."""
    new = [NewTopic(each.name, each.partitions, configs=each.configs) for each in plans if not each.exists]
    if not new:
        return []
    for answer in Admin(cluster).create_topics(new).values():
        # Another run of the pipeline may have been quicker.
        if isinstance(answer, ClientError) and not _is(answer, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise answer
    for each in new:
        cluster.topic(each.name, create=True)  # waits until the brokers show it
    return [each.name for each in new]


def _is_unknown(error: ClientError) -> bool:
    return _is(error, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _is(error: ClientError, code: ErrorCode) -> bool:
    return isinstance(error, RefusedError) and error.code is code
