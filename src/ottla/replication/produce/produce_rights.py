"""What a client may write: Produce with an authorizer.

Zone: deterministic. Hot: one look-up per partition, and no call. A denied item keeps its place, with an error instead
of its records, so that no later step appends it, and none discloses whether the topic exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.acls import Operation, ResourceType
from ottla.record.batch import MAGIC_POS, MAGIC_V2, TRANSACTIONAL
from ottla.replication.leaders import Leaders
from ottla.replication.partition_registry import Topics
from ottla.replication.produce.produce_items import CODEC_POS, BatchItem, DeniedBatch
from ottla.requests import Rights, RightsOf, denied_error
from ottla.seams import Peer
from ottla.wire.apis import ApiKey

_WRITE: Final = Operation.WRITE
_WRITE_BIT: Final = 1 << Operation.WRITE
_TOPIC: Final = ResourceType.TOPIC
_TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID


class ProduceRights:
    """Refuses the items that a connection may not write."""

    __slots__ = ("_leaders", "_rights_of", "_topics")

    def __init__(self, rights_of: RightsOf, topics: Topics, leaders: Leaders) -> None:
        """`topics`: those of this broker by id."""
        self._rights_of = rights_of
        self._topics = topics
        self._leaders = leaders

    def refuse_denied(
        self, peer: Peer, transactional_id: str | None, items: Sequence[BatchItem]
    ) -> Sequence[BatchItem]:
        """The items, with an error in place of the records that may not be written.

        A request with records of a transaction needs Write on the transactional id, or all of it is refused. So it is
        without such an id, although the records belong to a transaction.
        """
        rights = self._rights_of(peer)
        if rights is None:
            return items
        # Most requests: topics that the connection has written to, and no transaction.
        allowed = rights.topics
        for name, _, records in items:
            topic = name if type(name) is str else self._name_of(name)
            if topic is None or not allowed.get(topic, 0) & _WRITE_BIT:
                break
            if type(records) is memoryview and len(records) > CODEC_POS and records[CODEC_POS] & TRANSACTIONAL:
                break
        else:
            return items
        return self._check_items(rights, transactional_id, items)

    def _check_items(
        self, rights: Rights, transactional_id: str | None, items: Sequence[BatchItem]
    ) -> Sequence[BatchItem]:
        # The items are copied once one of them is denied.
        is_transactional = False
        checked: list[BatchItem] | None = None
        for at, item in enumerate(items):
            name, index, records = item
            if type(records) is memoryview and len(records) > CODEC_POS and records[CODEC_POS] & TRANSACTIONAL:
                is_transactional |= records[MAGIC_POS] == MAGIC_V2  # requests of any version may carry batches
            topic = name if type(name) is str else self._name_of(name)
            if topic is not None and not rights.is_allowed(_WRITE, _TOPIC, topic):
                rights.log_denial(ApiKey.PRODUCE, _WRITE, _TOPIC, topic)
                checked = list(items) if checked is None else checked
                checked[at] = (name, index, DeniedBatch(denied_error(_TOPIC)))
        if is_transactional and not _may_use(rights, transactional_id):
            refused = DeniedBatch(denied_error(_TRANSACTIONAL_ID))
            return [(name, index, refused) for name, index, _ in items]
        return items if checked is None else checked

    def _name_of(self, topic_id: object) -> str | None:
        """The name of a topic; None: no topic has this id, which is the error that the client gets."""
        assert isinstance(topic_id, bytes)
        topic = self._topics.get(topic_id)
        return self._leaders.name_of_topic(topic_id) if topic is None else topic.name


def _may_use(rights: Rights, transactional_id: str | None) -> bool:
    name = transactional_id or ""
    if transactional_id is not None and rights.is_allowed(_WRITE, _TRANSACTIONAL_ID, name):
        return True
    rights.log_denial(ApiKey.PRODUCE, _WRITE, _TRANSACTIONAL_ID, name)
    return False
