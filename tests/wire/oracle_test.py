"""Differential tests: our bytes read and written again by kio and by kafka-python, which read Kafka's own tables."""

from __future__ import annotations

import importlib
import io
import random
import re
import warnings
from types import ModuleType
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from ottla.wire.codec import encode_bytes
from ottla.wire.messages import ApiVersionsResponse
from ottla.wire.schema import Message

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its tables in a way that Python will drop
    from kafka.protocol.api_message import ApiMessage

SEEDS = 3


def snake(name: str) -> str:
    """CreateAclsRequest → create_acls_request."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def kio_class(cls: type[Message], version: int) -> Any:
    """kio's dataclass for a message and version; None where it has none (it starts at Kafka 4's lowest versions)."""
    api, _, kind = snake(cls.__name__).rpartition("_")
    try:
        return getattr(importlib.import_module(f"kio.schema.{api}.v{version}.{kind}"), cls.__name__)
    except ModuleNotFoundError:
        return None


def samples(grammar: ModuleType, cls: type[Message], version: int) -> list[bytes]:
    """Bytes of random messages."""
    rng = random.Random(f"{cls.__name__} {version}")
    return [encode_bytes(grammar.message(rng, cls, version, modest=True), version) for _ in range(SEEDS)]


@pytest.mark.slow
def test_kio_reads_and_writes_the_same_bytes(grammar: ModuleType, message_class: type[Message]) -> None:
    for version in message_class.VERSIONS:
        theirs = kio_class(message_class, version)
        if theirs is None:
            continue
        for data in samples(grammar, message_class, version):
            entity, size = entity_reader(theirs)(data, 0)
            assert size == len(data), version
            out = io.BytesIO()
            entity_writer(theirs)(out, entity)
            assert out.getvalue() == data, version


@pytest.mark.slow
def test_kio_knows_most_of_it(grammar: ModuleType) -> None:
    """The test above compares nothing where kio has no class: that must stay the small rest."""
    known = [cls.__name__ for cls in grammar.ALL if kio_class(cls, cls.VERSIONS[-1]) is not None]
    missing = sorted({cls.__name__ for cls in grammar.ALL} - set(known))
    assert len(known) >= 130, missing


def kafka_python_class(cls: type[Message]) -> type[ApiMessage] | None:
    """kafka-python's class of a message, None where it has none."""
    for module in ("consumer", "producer", "metadata", "admin", "sasl"):
        found = getattr(importlib.import_module(f"kafka.protocol.{module}"), cls.__name__, None)
        if found is not None:
            return found
    return None


@pytest.mark.slow
def test_kafka_python_reads_and_writes_the_same_bytes(grammar: ModuleType, message_class: type[Message]) -> None:
    theirs = kafka_python_class(message_class)
    if theirs is None:
        return
    first, last = theirs.valid_versions
    for version in message_class.VERSIONS:
        if not first <= version <= last:
            continue
        for data in samples(grammar, message_class, version):
            if message_class is ApiVersionsResponse and data[:2] != b"\0\0":
                continue  # it writes an answer with an error as v0, whatever the version: its own choice as a client
            entity = theirs.decode(data, version=version)
            entity._header = None
            assert bytes(entity.encode(version=version)) == data, version


def test_kafka_python_knows_half_of_it(grammar: ModuleType) -> None:
    assert sum(kafka_python_class(cls) is not None for cls in grammar.ALL) >= 80
