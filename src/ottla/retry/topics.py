"""The topics that a policy needs: made like the one whose records go there.

Zone: real.
"""

from __future__ import annotations

from ottla.client.admin import Admin
from ottla.client.admin_types import NewTopic, TopicCreated
from ottla.client.errors import ClientError, RefusedError, values_of
from ottla.errors import ErrorCode
from ottla.retry.policy import RetryPolicy


def create_topics(admin: Admin, policy: RetryPolicy, topic: str) -> list[str]:
    """Make the retry topics and the dead-letter topic of `topic` that are missing, with as many partitions.

    Returns the names of the new ones. Raises RefusedError, for a topic that does not exist, too.
    """
    partitions = len(values_of(admin.describe_topics([topic]))[topic].partitions)
    wanted = policy.topics(topic)
    found = admin.describe_topics(wanted)
    missing = [name for name in wanted if _is_missing(found[name])]
    made = admin.create_topics([NewTopic(name, partitions) for name in missing])
    for name, result in made.items():
        if isinstance(result, ClientError) and not _exists(result):
            raise result.with_traceback(None) from None
        if isinstance(result, TopicCreated):
            continue
        missing.remove(name)
    return missing


def _is_missing(result: object) -> bool:
    if isinstance(result, RefusedError) and result.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return True
    if isinstance(result, ClientError):
        raise result
    return False


def _exists(error: ClientError) -> bool:
    return isinstance(error, RefusedError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS
