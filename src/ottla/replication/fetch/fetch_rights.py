"""What a client may read: Fetch with an authorizer.

Zone: deterministic. Every read of a partition is decided, not every request: a fetch that waits while its right is
taken away gets an error instead of the next records.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.acls import Operation, ResourceType
from ottla.replication.leaders import Leaders
from ottla.requests import Rights
from ottla.wire.apis import ApiKey

_READ: Final = Operation.READ
_TOPIC: Final = ResourceType.TOPIC


def may_read(rights: Rights, topics: Any, leaders: Leaders, topic: str | bytes) -> bool:
    """Whether a topic may be read. `topics`: those of this broker, by name or id as in the request.

    An id of no topic may be read: the read answers that there is none.
    """
    name = topic if isinstance(topic, str) else _name_of(topics, leaders, topic)
    if name is None or rights.is_allowed(_READ, _TOPIC, name):
        return True
    rights.log_denial(ApiKey.FETCH, _READ, _TOPIC, name)
    return False


def _name_of(topics: Any, leaders: Leaders, topic_id: bytes) -> str | None:
    topic = topics.get(topic_id)
    return leaders.name_of_topic(topic_id) if topic is None else topic.name
