"""Every client writes with every codec; every client reads it back, byte for byte."""

from __future__ import annotations

import random
import time

import pytest
from testbench.clients import CLIENTS, Aiokafka, Confluent, KafkaPython, Kcat, Record

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
STAMP = 1_700_000_000_000
BY_NAME = {client.name: client for client in CLIENTS}
LIBRARIES = [client.name for client in CLIENTS if not isinstance(client, Kcat)]


def big(size: int) -> bytes:
    """Bytes that shrink to about half."""
    rng = random.Random(size)
    return b"".join(rng.randbytes(8) + b"twelve bytes"[:8] for _ in range(size // 16))


RECORDS = (
    Record(b"key", b"value", (("h", b"1"),), STAMP),
    Record(None, b"no key", (), STAMP + 1),
    Record(b"", b"empty key", (), STAMP + 2),
    Record(bytes(range(256)), b"binary key", (), STAMP + 3),
    Record(b"tombstone", None, (), STAMP + 4),
    Record(b"empty", b"", (), STAMP + 5),
    Record(b"headers", bytes(range(256)), (("a", b"1"), ("a", b"2"), ("none", None), ("empty", b"")), STAMP + 7),
    Record(b"back in time", b"older than the one before", (), STAMP - 86_400_000),
    Record(b"big", big(1_000_000), (), STAMP + 8),
    *(Record(b"%d" % (number % 7), b"value %d " % number * 5, (), STAMP + 10 + number) for number in range(200)),
)
PLAIN = (
    Record(b"k", b"v", (("h", b"1"), ("h", b"2"))),
    Record(None, b"x" * 1000),
    Record(b"t", None),
    Record(b"n", big(100_000)),
)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", LIBRARIES)
def test_what_one_library_writes_every_client_reads(bootstrap: str, topic: str, writer: str, codec: str) -> None:
    nothing = [Record(None, None, (), STAMP)] if writer == "confluent" else []  # the others refuse to send that
    records = [*RECORDS, *nothing]
    if writer == "kafka-python":  # it refuses a header that is null
        headers = tuple((name, value or b"") for name, value in records[6].headers)
        records[6] = records[6]._replace(headers=headers)
    BY_NAME[writer].write(bootstrap, topic, records, codec)
    for reader in (Confluent(), KafkaPython(), Aiokafka()):
        assert reader.read(bootstrap, topic) == records, reader.name
    found = Kcat().read(bootstrap, topic)
    assert [each[:2] for each in found] == [each[:2] for each in records]
    assert [each.timestamp for each in found] == [each.timestamp for each in records]
    assert found[6].headers == records[6].headers


@pytest.mark.parametrize("codec", CODECS)
def test_what_kcat_writes_every_client_reads(bootstrap: str, topic: str, codec: str, need) -> None:
    need("kcat", "kcat")
    before = int(time.time() * 1000) - 1000
    Kcat().write(bootstrap, topic, PLAIN, codec)
    for reader in CLIENTS:
        found = reader.read(bootstrap, topic)
        assert [each[:3] for each in found] == [each[:3] for each in PLAIN], reader.name
        assert all(before < each.timestamp < before + 60_000 for each in found)


@pytest.mark.parametrize("reader", [client.name for client in CLIENTS])
def test_reading_starts_inside_a_batch(bootstrap: str, topic: str, reader: str) -> None:
    Confluent().write(bootstrap, topic, RECORDS[10:110], "lz4")
    found = BY_NAME[reader].read(bootstrap, topic, 0, 57)
    assert [each[:2] for each in found] == [each[:2] for each in RECORDS[67:110]]


@pytest.mark.parametrize("codec", CODECS)
def test_the_broker_keeps_the_codec_of_the_producer(broker, bootstrap: str, topic: str, codec: str) -> None:
    """A client that finds the wrong version ranges in ApiVersions sends uncompressed, without a word."""
    for number, client in enumerate(CLIENTS):
        name = f"{topic}-{number}"
        client.write(bootstrap, name, [Record(None, b"compressible " * 400)], codec)
        log = (broker.data / f"{name}-0" / "00000000000000000000.log").read_bytes()
        assert log[22] & 7 == CODECS.index(codec), client.name
