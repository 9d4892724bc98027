"""Input that no client should send: frames, headers, bodies and record batches, each with its required outcome.

Zone: real (its only effect is to draw from the given `random.Random`). `bench/fuzz.py` sends the cases.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.record import batch as batches
from ottla.record.compression import compress
from ottla.record.varint import encode_varint
from ottla.wire import messages
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import encode_bytes
from ottla.wire.header import encode_request_header
from ottla.wire.primitives import uvarint

CLOSED: Final = "closed"
ANSWERED: Final = "answered"
REFUSED: Final = "refused"
EITHER: Final = "either"
"""`REFUSED`: a Produce answer with an error for the partition. `EITHER`: an answer, or the end of the connection."""

PLAIN: Final = "hostile"
WATCHED: Final = "hostile-watched"
"""The two topics for batches; the second has compression.type=gzip, so the broker decompresses other codecs."""

PRODUCE_VERSION: Final = 9
INT_MAX: Final = 2**31 - 1
LENGTHS: Final = (-2, -1, 0, 1, 1000, 2**30, INT_MAX)


class Case(NamedTuple):
    """Bytes for a new connection, and the required outcome."""

    name: str
    data: bytes
    outcome: str = EITHER


def framed(frame: bytes) -> bytes:
    """Add the length prefix."""
    return struct.pack(">i", len(frame)) + frame


def request(key: int, version: int, body: bytes) -> bytes:
    """A frame with a proper header; correlation id 7."""
    return framed(encode_request_header(key, version, 7, "fuzz") + body)


def framing() -> Iterator[Case]:
    """Impossible length prefixes, other protocols, and requests that are too short."""
    for size in (0, 1, 3, 7, -1, -(2**31), INT_MAX, 100 * 1024 * 1024 + 1):
        yield Case(f"a frame of {size} bytes", struct.pack(">i", size) + b"\0" * 64, CLOSED)
    yield Case("a TLS handshake", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64, CLOSED)
    yield Case("an HTTP request", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", CLOSED)
    yield Case("half a frame", framed(b"\0\x12\0\0" + b"\0" * 100)[:50])
    yield Case("half a length", b"\0\0")
    yield Case("pipelined requests", request(18, 0, b"") * 1000, ANSWERED)


def headers() -> Iterator[Case]:
    """Unknown API keys and versions, and client ids and tags with wrong lengths."""
    for key in (-1, 32767, 999):
        yield Case(f"api key {key}", framed(struct.pack(">hhih", key, 0, 7, -1)), CLOSED)
    for version in (-1, 5, 32767):
        yield Case(
            f"ApiVersions {version}", framed(struct.pack(">hhih", 18, version, 7, -1) + b"\0\x02a\x02b\0"), ANSWERED
        )
    for version in (-1, 99, 32767):
        yield Case(f"Metadata {version}", framed(struct.pack(">hhih", 3, version, 7, -1)), CLOSED)
    for length in (-2, 32767, 100):
        yield Case(f"a client id of {length} bytes", framed(struct.pack(">hhih", 18, 0, 7, length)))
    for raw in (b"\xff\xfe", b"\0\0", b"\xc0\x80"):
        yield Case(f"a client id {raw!r}", framed(struct.pack(">hhih", 18, 0, 7, len(raw)) + raw))
    head = struct.pack(">hhih", 3, 12, 7, -1)
    body = encode_bytes(messages.MetadataRequest(), 12)
    for name, tags in (
        ("2^32-1 tags", uvarint(2**32 - 1)),
        ("20 million tags", uvarint(20_000_000) + b"\0\0" * 50_000),
        ("the same tag twice", b"\x02\x05\x00\x05\x00"),
        ("falling tags", b"\x02\x06\x00\x05\x00"),
        ("a tag larger than the rest", b"\x01\x05" + uvarint(2**31)),
        ("a varint of 6 bytes", b"\xff\xff\xff\xff\xff\x01"),
        ("an overlong varint", b"\x80\x80\x80\x80\x80\x80\x00"),
    ):
        yield Case(f"a header with {name}", framed(head + tags + body))


def bodies(rng: random.Random) -> Iterator[Case]:
    """Every declared API and version: cut, followed by bytes, with wrong lengths."""
    for key, api in sorted(API_TABLE.items()):
        for version in {api.min_version, api.max_version}:
            body = encode_bytes(api.request(), version)
            name = f"{api.name} {version}"
            yield Case(f"{name} with bytes behind it", request(key, version, body + b"\0" * 9))
            for at in {0, len(body) // 2, max(0, len(body) - 1)}:
                yield Case(f"{name} cut at {at}", request(key, version, body[:at]))
            for length in LENGTHS:
                at = rng.randrange(len(body) + 1)
                claim = struct.pack(">i", length) if version < api.flexible_from else uvarint((length + 1) % 2**32)
                yield Case(f"{name} claims {length} at {at}", request(key, version, body[:at] + claim + body[at:]))


def wishes() -> Iterator[Case]:
    """Well-formed requests with impossible values."""
    m = messages
    for name in ("", ".", "..", "a/../b", "x" * 250, "__consumer_offsets", "né", "a\0b"):
        topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        yield _ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5, f"create topic {name[:20]!r}")
    for count, replicas in ((10_000_000, 1), (INT_MAX, 1), (0, 1), (-2, 1), (1, 0), (1, 32767), (1, -2)):
        topic = m.CreateTopicsRequest.CreatableTopic(name="huge", num_partitions=count, replication_factor=replicas)
        yield _ask(
            m.CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5, f"{count} partitions, {replicas} replicas"
        )
        more = m.CreatePartitionsRequest.CreatePartitionsTopic(name=PLAIN, count=count)
        yield _ask(m.CreatePartitionsRequest(topics=[more], timeout_ms=1000), 2, f"grow to {count}")
    names = [m.MetadataRequest.MetadataRequestTopic(name=f"t{number}") for number in range(20_000)]
    request_all = m.MetadataRequest(topics=names, allow_auto_topic_creation=False)
    yield _ask(request_all, 8, "Metadata of 20,000 topics")
    for offset in (-2, 10**15, -(2**63)):
        partition = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
        topics = [m.DeleteRecordsRequest.DeleteRecordsTopic(name=PLAIN, partitions=[partition])]
        yield _ask(m.DeleteRecordsRequest(topics=topics, timeout_ms=1000), 2, f"delete records before {offset}")
    for index in (-1, 1, INT_MAX):
        for stamp in (-9, -1, 2**63 - 1):
            asked = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=stamp)
            topics = [m.ListOffsetsRequest.ListOffsetsTopic(name=PLAIN, partitions=[asked])]
            yield _ask(m.ListOffsetsRequest(replica_id=-1, topics=topics), 7, f"offset of {stamp} in partition {index}")
    for replica, minimum, most, index in ((-1, 1, -1, 0), (-1, 0, INT_MAX, INT_MAX), (3, 1, 10, 0), (-1, 0, 0, -1)):
        part = m.FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=most)
        topics = [m.FetchRequest.FetchTopic(topic=PLAIN, partitions=[part, part])]
        for isolation, session, epoch in ((7, 0, -1), (0, 12345, 5), (1, 0, 0), (0, -5, -7)):
            fetch = m.FetchRequest(
                replica_id=replica, max_wait_ms=0, min_bytes=minimum, max_bytes=most, isolation_level=isolation,
                session_id=session, session_epoch=epoch, topics=topics,
            )  # fmt: skip
            yield _ask(fetch, 11, f"fetch {replica} {minimum} {most} {index} {isolation} {session} {epoch}")
    for kind, resource, key, value in (
        (2, PLAIN, "retention.ms", "file:/etc/passwd"), (2, PLAIN, "java.lang.Runtime", "x"), (4, "77", "x", "y"),
        (2, "../../etc", "retention.ms", "1"), (99, "", "", ""), (2, PLAIN, "segment.bytes", "1" * 5000),
    ):  # fmt: skip
        config = m.IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=0, value=value)
        found = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=kind, resource_name=resource, configs=[config]
        )
        yield _ask(m.IncrementalAlterConfigsRequest(resources=[found]), 1, f"set {key[:20]} of {kind} {resource}")


def _ask(message: messages.CreateTopicsRequest, version: int, name: str) -> Case:
    return Case(name, request(message.API_KEY, version, encode_bytes(message, version)), ANSWERED)


# -- record batches ----------------------------------------------------------------------------------------------------


def good_batch(codec: int = 0, count: int = 3) -> bytearray:
    """A valid batch."""
    records = [batches.Record(number, 1_700_000_000_000 + number, b"k", b"v" * 20, ()) for number in range(count)]
    return batches.encode_batch(records, codec=codec)


def _with(change: dict[str, int], *, seal: bool = True, codec: int = 0) -> bytes:
    batch = good_batch(codec)
    batches.put_header(batch, batches.header_at(batch)._replace(**change))
    if seal:
        batches.seal_crc(batch, 0, len(batch))
    return bytes(batch)


def _inside(payload: bytes, codec: int = 0, count: int = 1) -> bytes:
    """A batch with a right header and checksum around these bytes."""
    batch = good_batch()[: batches.HEADER_SIZE] + payload
    header = batches.header_at(batch)._replace(
        batch_length=len(batch) - 12, attributes=codec, record_count=count, last_offset_delta=count - 1
    )
    batches.put_header(batch, header)
    batches.seal_crc(batch, 0, len(batch))
    return bytes(batch)


def wrong_headers() -> Iterator[tuple[str, bytes]]:
    """Batches with a wrong header: each must be refused."""
    for length in (-1, 0, 48, INT_MAX, -(2**31)):
        yield f"batch length {length}", _with({"batch_length": length}, seal=False)
    for magic in (-1, 0, 1, 3, 127):
        yield f"magic {magic}", _with({"magic": magic}, seal=False)
    yield "a wrong checksum", _with({"crc": 12345}, seal=False)
    for attributes in (5, 6, 7, 0x20, 0x10):
        yield f"attributes {attributes:#x}", _with({"attributes": attributes})
    for count in (-1, 0, 2, 4, 10**9):
        yield f"a record count of {count}", _with({"record_count": count})
    for delta in (-1, 0, 5, INT_MAX):
        yield f"a last offset delta of {delta}", _with({"last_offset_delta": delta})
    yield "a producer without an epoch", _with({"producer_id": 5, "producer_epoch": -1, "base_sequence": 0})
    yield "a producer without a sequence", _with({"producer_id": 5, "producer_epoch": 0, "base_sequence": -1})
    yield "two batches", bytes(good_batch() * 2)
    yield "bytes behind the batch", bytes(good_batch()) + b"\0" * 30
    yield "a cut batch", bytes(good_batch()[:-5])
    yield "a cut header", bytes(good_batch()[:40])
    yield "nothing", b""


def wrong_insides() -> Iterator[tuple[str, bytes]]:
    """Batches with a valid header and checksum, and malformed records."""
    varint = encode_varint
    body = b"\0" + varint(0) + varint(0)
    for name, record in (
        ("a record length of -1", varint(-1)),
        ("a record length of 2^31-1", varint(INT_MAX)),
        ("a key of -2 bytes", varint(10) + body + varint(-2) + b"12345"),
        ("a value of 2^30 bytes", varint(10) + body + varint(-1) + varint(2**30)),
        ("10^9 headers", varint(12) + body + varint(-1) + varint(-1) + varint(10**9)),
        ("-1 headers", varint(7) + body + varint(-1) + varint(-1) + varint(-1)),
        ("a header key of -1 bytes", varint(8) + body + varint(-1) + varint(-1) + varint(1) + varint(-1)),
        ("no record", b""),
    ):
        yield name, _inside(record)
        for codec in (1, 2, 3, 4):
            yield f"{name}, codec {codec}", _inside(compress(codec, record), codec)
    for codec in (1, 2, 3, 4):
        yield f"an empty payload of codec {codec}", _inside(b"", codec)
        yield f"garbage for codec {codec}", _inside(b"\xde\xad\xbe\xef" * 20, codec)
        yield f"a cut stream of codec {codec}", _inside(compress(codec, b"x" * 1000)[:-4], codec)
        yield (
            f"a bomb of codec {codec}",
            _inside(compress(codec, bytes(300_000_000 if codec == 4 else 60_000_000)), codec),
        )
    xerial = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for size in (-1, 0, INT_MAX):
        yield f"a xerial chunk of {size} bytes", _inside(xerial + struct.pack(">i", size), 2)
    yield "raw snappy of 4 GiB", _inside(b"\xff\xff\xff\xff\x0f" + b"\0" * 9, 2)
    yield "an lz4 header with a wrong checksum", _inside(b"\x04\x22\x4d\x18\x60\x70\x00" + b"\0" * 8, 3)
    yield "an lz4 block of 2 GiB", _inside(b"\x04\x22\x4d\x18\x60\x70\x73\xff\xff\xff\x7f", 3)
    yield "zstd with a window of 2^31", _inside(b"\x28\xb5\x2f\xfd\x00\xa8" + b"\0" * 9, 4)
    yield "zstd that declares 2^60 bytes", _inside(b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**60) + b"\0" * 4, 4)
    yield "zstd with a dictionary", _inside(b"\x28\xb5\x2f\xfd\x21\x99\x05" + b"\0" * 4, 4)


def produce(topic: str, records: bytes) -> bytes:
    """A Produce request, acks=1, for partition 0."""
    m = messages.ProduceRequest
    data = m.TopicProduceData(name=topic, partition_data=[m.PartitionProduceData(index=0, records=records)])
    message = m(acks=1, timeout_ms=1000, topic_data=[data])
    return request(0, PRODUCE_VERSION, encode_bytes(message, PRODUCE_VERSION))


def record_batches() -> Iterator[Case]:
    """All batches, for both topics."""
    for name, records in wrong_headers():
        for topic in (PLAIN, WATCHED):
            yield Case(f"{name} → {topic}", produce(topic, records), REFUSED)
    for name, records in wrong_insides():
        unpacked = records[22] & batches.CODEC_MASK != 1
        yield Case(f"{name} → {WATCHED}", produce(WATCHED, records), REFUSED if unpacked else ANSWERED)
        yield Case(f"{name} → {PLAIN}", produce(PLAIN, records), ANSWERED)


def corpus(rng: random.Random) -> Iterator[Case]:
    """All named cases."""
    yield from framing()
    yield from headers()
    yield from bodies(rng)
    yield from wishes()
    yield from record_batches()
