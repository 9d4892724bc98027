"""Encoded topics for Metadata responses: the bytes of each topic are cached until the topic changes.

Zone: deterministic. A response is a join of byte strings, built a slice at a time. The bytes of a topic depend on its
partitions, on the live brokers, and on the form of the request: version, listener, and whether it wants authorized
operations. A change of one topic drops the bytes of that topic, a change of the brokers drops all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Final

from ottla.cluster.image import NO_LEADER, BrokerImage, PartitionImage, TopicImage
from ottla.errors import ErrorCode
from ottla.wire.codec import compile_portion
from ottla.wire.messages import MetadataResponse
from ottla.wire.primitives import uvarint
from ottla.wire.schema import Encoder

MAX_KEPT: Final = 16 << 20
"""Limit in bytes of the cache, for all forms together."""
_ENTRY: Final = 200
"""Memory in bytes of one entry besides the topic's bytes."""
_MAX_TAILS: Final = 10_000
SLICE: Final = 20_000
"""Cost of a slice, in tenths of a microsecond."""
_JOINED, _MADE, _PARTITION, _DECIDED = 3, 40, 6, 30
"""Cost of a topic whose bytes are cached, of one that is encoded, of each of its partitions, and of a decision about
the rights at a topic."""
_AT_ONCE: Final = 1_000
"""Partitions that are encoded before the cost is checked."""
_FLEXIBLE_SINCE, _EPOCHS_SINCE, _OFFLINE_SINCE, _LISTENER_ERROR_SINCE, _OPERATIONS_SINCE = 9, 7, 5, 6, 8

EncodedTopics = MetadataResponse.MetadataResponseTopic
Replicas = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The replicas of a partition, those in sync, and those offline."""


class KeptTopics:
    """The cache of encoded topics in the forms that were requested."""

    def __init__(self) -> None:
        self._brokers: Mapping[int, BrokerImage] = {}
        self._forms: dict[tuple[int, str, int], TopicForm] = {}
        self.size = 0
        """The estimated memory of the cache in bytes."""

    def form_for(self, version: int, listener: str, operations: int, brokers: Mapping[int, BrokerImage]) -> TopicForm:
        """The form of topics for requests of this version that came through this listener."""
        # The identity of the mapping decides first, because it changes rarely and comparing it costs more.
        if brokers is not self._brokers:
            if brokers != self._brokers:
                self._clear_forms()
            self._brokers = brokers
        key = (version, listener, operations)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = TopicForm(self, version, listener, operations, brokers)
        return form

    def _clear_forms(self) -> None:
        for form in self._forms.values():
            form.clear_topics()
            form.is_current = False
        self._forms.clear()
        self.size = 0

    def forget_topics(self, names: Iterable[str], topics: Mapping[str, TopicImage]) -> None:
        """Drop the bytes of topics that changed or are not among `topics`."""
        for name in names:
            present = topics.get(name)
            for form in self._forms.values():
                form.forget_topic(name, present)

    def make_room(self, form: TopicForm) -> bool:
        """Whether another topic may be cached in a form. Drops the bytes of other forms if the cache is full."""
        if self.size <= MAX_KEPT:
            return True
        for other in self._forms.values():
            if other is not form:
                self.size -= other.clear_topics()
        return self.size <= MAX_KEPT


class TopicForm:
    """Encodes topics in one form, and caches their bytes."""

    def __init__(
        self, owner: KeptTopics, version: int, listener: str, operations: int, brokers: Mapping[int, BrokerImage]
    ) -> None:
        self._owner = owner
        self._version = version
        self._operations = operations
        self._brokers = brokers
        self._is_flexible = version >= _FLEXIBLE_SINCE
        hidden = ErrorCode.LISTENER_NOT_FOUND if version >= _LISTENER_ERROR_SINCE else ErrorCode.LEADER_NOT_AVAILABLE
        self._leaders = {
            node: (0, node) if broker.endpoint_of(listener) is not None else (int(hidden), NO_LEADER)
            for node, broker in brokers.items()
        }
        """The error and the leader in a response, by leader."""
        self._tails: dict[Replicas, tuple[int, bytes]] = {}
        """The end of a partition: the error for replicas that are left out, and the encoded lists of replicas."""
        self._head, self._tail, self._whole = _topic_encoders(version)
        self._kept: dict[str, tuple[Sequence[PartitionImage], bytes]] = {}
        self.is_current = True
        """False once the brokers have changed; nothing more is cached then."""

    # -- cache ---------------------------------------------------------------------------------------------------

    def find_topic(self, topic: TopicImage) -> bytes | None:
        """The bytes of the topic in its present state, None if they are not cached."""
        kept = self._kept.get(topic.name)
        return kept[1] if kept is not None and kept[0] is topic.partitions else None

    def keep_topic(self, topic: TopicImage, content: bytes) -> None:
        """Cache the bytes of a topic while there is room."""
        if not topic.partitions or not self.is_current:
            return  # entries are compared by the identity of their partitions, and all empty tuples are identical
        self.forget_topic(topic.name, None)
        if self._owner.make_room(self):
            self._kept[topic.name] = (topic.partitions, content)
            self._owner.size += len(content) + _ENTRY

    def forget_topic(self, name: str, present: TopicImage | None) -> None:
        """Drop the bytes of a topic unless they are of the state `present`."""
        kept = self._kept.get(name)
        if kept is not None and (present is None or kept[0] is not present.partitions):
            del self._kept[name]
            self._owner.size -= len(kept[1]) + _ENTRY

    def clear_topics(self) -> int:
        """Drop all bytes. Returns how much memory that frees."""
        freed = sum(len(content) + _ENTRY for _, content in self._kept.values())
        self._kept.clear()
        return freed

    # -- encoding ------------------------------------------------------------------------------------------------

    def encode_partitions(self, partitions: Iterable[PartitionImage]) -> bytes:
        """Encode partitions, without their count."""
        tails, leaders, absent = self._tails, self._leaders, (int(ErrorCode.LEADER_NOT_AVAILABLE), NO_LEADER)
        pack = _PACK_EPOCH if self._version >= _EPOCHS_SINCE else _pack_old
        found = []
        for number, leader, epoch, replicas, isr, _, _, _, offline in partitions:
            # Many partitions share their lists of replicas, so their encodings are shared as well.
            key = (replicas, isr, offline)
            short, tail = tails.get(key) or self._add_tail(key)
            code, told = leaders.get(leader, absent)
            found.append(pack(code or short, number, told, epoch) + tail)
        return b"".join(found)

    def encode_topic(self, topic: TopicImage, partitions: bytes) -> bytes:
        """Encode a topic around its encoded partitions."""
        described = EncodedTopics(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            topic_authorized_operations=self._operations,
        )
        pieces: list[bytes] = []
        self._head(described, [], pieces, pieces.append)
        pieces.append(self._encode_count(len(topic.partitions)))
        pieces.append(partitions)
        self._tail(described, [], pieces, pieces.append)
        return b"".join(pieces)

    def replace_operations(self, content: bytes, operations: int) -> bytes:
        """The bytes of a topic with other authorized operations: its last field, before the empty tagged fields."""
        if self._version < _OPERATIONS_SINCE:
            return content
        end = len(content) - self._is_flexible
        return b"".join((content[: end - 4], _PACK_OPERATIONS(operations), content[end:]))

    def encode_error(self, topic: EncodedTopics) -> bytes:
        """Encode a topic with an error."""
        pieces: list[bytes] = []
        self._whole(topic, [], pieces, pieces.append)
        return b"".join(pieces)

    def _encode_count(self, count: int) -> bytes:
        return uvarint(count + 1) if self._is_flexible else count.to_bytes(4, "big")

    def _add_tail(self, key: Replicas) -> tuple[int, bytes]:
        replicas, isr, offline = key
        away = [broker for broker in replicas if broker not in self._brokers or broker in offline]
        short = 0
        # Version 0 has no list of offline replicas: as in Kafka it leaves them out, with an error.
        if self._version == 0:
            shown = [broker for broker in replicas if broker in self._brokers]
            in_sync = [broker for broker in isr if broker in self._brokers]
            if len(shown) < len(replicas) or len(in_sync) < len(isr):
                short = int(ErrorCode.REPLICA_NOT_AVAILABLE)
            tail = self._encode_numbers(shown) + self._encode_numbers(in_sync)
        else:
            tail = self._encode_numbers(replicas) + self._encode_numbers(isr)
        if self._version >= _OFFLINE_SINCE:
            tail += self._encode_numbers(away)
        if self._is_flexible:
            tail += b"\0"
        if len(self._tails) >= _MAX_TAILS:
            self._tails.clear()
        self._tails[key] = short, tail
        return short, tail

    def _encode_numbers(self, numbers: Sequence[int]) -> bytes:
        return self._encode_count(len(numbers)) + struct.pack(f">{len(numbers)}i", *numbers)


class HiddenTopic(Enum):
    """Takes the place of a topic that the client may not see."""

    HIDDEN = 1


HIDDEN: Final = HiddenTopic.HIDDEN


class TopicSlices:
    """Encodes topics, or errors in their place, a slice at a time."""

    def __init__(
        self,
        form: TopicForm,
        wanted: Iterable[TopicImage | EncodedTopics | HiddenTopic],
        shown: Callable[[TopicImage], TopicImage],
        operations: Callable[[TopicImage], int] | None = None,
    ) -> None:
        """shown: maps a topic to the one that clients see now. If they differ, its bytes are not cached. operations:
        the authorized operations at a topic; None: those of the form."""
        self._form = form
        self._wanted: Iterator[TopicImage | EncodedTopics | HiddenTopic] = iter(wanted)
        self._shown = shown
        self._operations = operations
        self._current: tuple[TopicImage, bool] | None = None
        """The topic that is being encoded, and whether its bytes will be cached."""
        self._done: list[bytes] = []
        """The encoded partitions of that topic, a thousand in each element."""
        self.is_over = False
        """Whether all topics were encoded."""

    def take_slice(self) -> list[bytes]:
        """The next encoded topics, up to the cost of a slice; may be empty during a topic with many partitions."""
        out: list[bytes] = []
        room = SLICE
        while room > 0 and not self.is_over:
            room -= self._begin_topic(out) if self._current is None else self._encode_more(out)
        return out

    def _begin_topic(self, out: list[bytes]) -> int:
        """Take the bytes of the next topic from the cache, or begin to encode it. Returns the cost."""
        topic = next(self._wanted, None)
        if topic is None:
            self.is_over = True
            return 0
        if isinstance(topic, HiddenTopic):
            return _DECIDED
        if isinstance(topic, EncodedTopics):
            out.append(self._form.encode_error(topic))
            return _MADE
        shown = self._shown(topic)
        kept = self._form.find_topic(shown)
        if kept is not None:
            out.append(self._with_operations(topic, kept))
        else:
            self._current = shown, shown is topic
        return _JOINED if self._operations is None else _DECIDED

    def _with_operations(self, topic: TopicImage, content: bytes) -> bytes:
        if self._operations is None:
            return content
        return self._form.replace_operations(content, self._operations(topic))

    def _encode_more(self, out: list[bytes]) -> int:
        """Encode the next partitions of the current topic. Returns the cost."""
        assert self._current is not None
        topic, is_kept = self._current
        begin = len(self._done) * _AT_ONCE
        some = topic.partitions[begin : begin + _AT_ONCE]
        self._done.append(self._form.encode_partitions(some))
        if begin + len(some) == len(topic.partitions):
            content = self._form.encode_topic(topic, b"".join(self._done))
            if is_kept:
                self._form.keep_topic(topic, content)
            out.append(self._with_operations(topic, content))
            self._current, self._done = None, []
        return _MADE + _PARTITION * len(some)


@cache
def _topic_encoders(version: int) -> tuple[Encoder, Encoder, Encoder]:
    """Encoders of a topic's fields before its partitions, of its fields after them, and of a whole topic."""
    return (
        compile_portion(MetadataResponse, version, EncodedTopics, "partitions", "head"),
        compile_portion(MetadataResponse, version, EncodedTopics, "partitions", "tail"),
        compile_portion(MetadataResponse, version, EncodedTopics, "", "function"),
    )


_PACK_OPERATIONS: Final = struct.Struct(">i").pack
_PACK_EPOCH: Final = struct.Struct(">hiii").pack
_PACK_PLAIN: Final = struct.Struct(">hii").pack


def _pack_old(code: int, number: int, leader: int, _epoch: int) -> bytes:
    return _PACK_PLAIN(code, number, leader)
