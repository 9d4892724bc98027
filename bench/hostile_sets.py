"""Message sets of formats v0 and v1 that no old client should send, and fetches of old consumers.

Zone: real (its only effect is to draw from the given `random.Random`). `bench/fuzz.py` sends the cases.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from typing import Final

from tests.messagesets import message, message_set, wrapper

from bench.hostile_cases import ANSWERED, INT_MAX, PLAIN, REFUSED, WATCHED, Case, request
from ottla.wire import messages
from ottla.wire.codec import encode_bytes

VERSION_OF: Final = {0: 1, 1: 2}
"""Message format → version of Produce."""
_CODECS: Final = (1, 2, 3)


def produce_set(topic: str, content: bytes, version: int = 2) -> bytes:
    """A Produce request of an old client, acks=1, for partition 0."""
    m = messages.ProduceRequest
    data = m.TopicProduceData(name=topic, partition_data=[m.PartitionProduceData(index=0, records=content)])
    return request(0, version, encode_bytes(m(acks=1, timeout_ms=1000, topic_data=[data]), version))


def fetch_old(topic: str, version: int, offset: int, max_bytes: int) -> bytes:
    """A Fetch request of an old client, which does not wait."""
    m = messages.FetchRequest
    asked = m.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    message = m(max_wait_ms=0, min_bytes=1, max_bytes=INT_MAX, topics=[m.FetchTopic(topic=topic, partitions=[asked])])
    return request(1, version, encode_bytes(message, version))


def wrong_sets(magic: int) -> Iterator[tuple[str, bytes]]:
    """Message sets of one format, each of which must be refused."""
    good = message(magic, b"k", b"value", timestamp=5)
    for size in (-(2**31), -1, 0, 13, 13 + 8 * magic, INT_MAX):
        yield f"a message of {size} bytes", good[:8] + struct.pack(">i", size) + good[12:]
    for other in (-1, 2, 3, 127):
        yield f"a second message of magic {other}", good + good[:16] + struct.pack(">b", other) + good[17:]
    yield "a wrong checksum", good[:-1] + b"\0"
    for codec in (4, 5, 7):
        yield f"codec {codec}", message(magic, None, b"payload", attributes=codec)
    for length in (-2, 2**30, INT_MAX, -(2**31)):
        body = good[16 : 18 + 8 * magic] + struct.pack(">i", length) + b"rest of it"
        yield f"a key of {length} bytes", struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    for cut in (1, 5, 12, 20, len(good) - 1):
        yield f"cut to {cut} bytes", good[:cut]
        yield f"a second message cut to {cut} bytes", good + good[:cut]
    for codec in _CODECS:
        inner = wrapper(magic, codec, good)
        yield f"a set in a set of codec {codec}", wrapper(magic, codec, inner)
        yield f"a message of the other format in codec {codec}", wrapper(magic, codec, message(1 - magic, b"k", b"v"))
        yield f"a wrong checksum within codec {codec}", wrapper(magic, codec, good[:-1] + b"\0")
        yield f"a cut message within codec {codec}", wrapper(magic, codec, good + good[:-1])
        yield f"an empty wrapper of codec {codec}", wrapper(magic, codec, b"")
        yield f"a wrapper without a payload of codec {codec}", message(magic, None, None, attributes=codec)
        yield f"garbage for codec {codec}", message(magic, None, b"\xde\xad\xbe\xef" * 20, attributes=codec)
        yield f"a bomb of codec {codec}", wrapper(magic, codec, message(magic, b"k", bytes(110_000_000)))
    if magic:
        yield "a timestamp of -2", message(1, b"k", b"v", timestamp=-2)
        yield "a timestamp of 2^63-1", message(1, b"k", b"v", timestamp=2**63 - 1)
        yield "a client's LogAppendTime", message(1, b"k", b"v", timestamp=5, attributes=8)


def message_sets() -> Iterator[Case]:
    """All sets, for both topics; then fetches of old consumers, which get the sets of hostile producers."""
    for magic, version in VERSION_OF.items():
        for name, content in wrong_sets(magic):
            for topic in (PLAIN, WATCHED):
                yield Case(f"format v{magic}, {name} → {topic}", produce_set(topic, content, version), REFUSED)
        many = message_set(magic, 1, [(None, None, -1)] * 50_000)
        yield Case(f"format v{magic}, 50,000 messages in a wrapper", produce_set(PLAIN, many, version), ANSWERED)
        yield Case(f"format v{magic}, no messages", produce_set(PLAIN, b"", version), ANSWERED)
    for version in range(4):
        for topic in (PLAIN, WATCHED):
            for max_bytes in (-1, 0, 1, INT_MAX):
                for offset in (-1, 0, 1, 50, INT_MAX):
                    name = f"Fetch {version} of {max_bytes} bytes of {topic} from {offset}"
                    yield Case(name, fetch_old(topic, version, offset, max_bytes), ANSWERED)


def random_set(rng: random.Random) -> Case:
    """A message set with some bits changed, whose checksum may be right again; or an old consumer."""
    topic = rng.choice((PLAIN, WATCHED))
    if rng.random() < 0.3:
        offset, size = rng.randrange(200), rng.choice((1, 500, 10_000, INT_MAX))
        return Case("an old consumer", fetch_old(topic, rng.randrange(4), offset, size), ANSWERED)
    magic, codec = rng.randrange(2), rng.randrange(4)
    rows = [(rng.randbytes(rng.randrange(9)), b"value", 5 + at) for at in range(rng.randrange(1, 9))]
    content = bytearray(message_set(magic, codec, rows))
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(8, len(content))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.7:
        (size,) = struct.unpack_from(">i", content, 8)
        struct.pack_into(">I", content, 12, zlib.crc32(content[16 : 12 + size] if size > 4 else content[16:]))
    return Case("a mutated message set", produce_set(topic, bytes(content), rng.randrange(3)), ANSWERED)
