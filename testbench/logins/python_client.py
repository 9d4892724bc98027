"""Logs in and does one thing for each line of its standard input: `python -m testbench.logins.python_client LIBRARY`.

Zone: real. The fields of a line are those of cases.py. Says "ok", or the name of the error: for confluent-kafka
librdkafka's name of its code, for kafka-python and aiokafka its class.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

WAIT_S = 15
EARLY_NEWS = ("_ALL_BROKERS_DOWN", "_TRANSPORT", "_RESOLVE")
"""Codes that librdkafka reports beside the reason, or before it."""
NEWS_S = 3
"""How long a better reason may take."""


class Fields(NamedTuple):
    """A line."""

    bootstrap: str
    protocol: str
    mechanism: str
    user: str
    password: str
    authority: str
    own: str
    action: str
    resource: str


# -- confluent-kafka ---------------------------------------------------------------------------------------------------


class Refused(Exception):
    """librdkafka reported an error; its text is the name of the code."""


def confluent_settings(fields: Fields, errors: list[Any]) -> dict[str, Any]:
    """The keys of librdkafka."""
    made: dict[str, Any] = {
        "bootstrap.servers": fields.bootstrap,
        "security.protocol": fields.protocol,
        "error_cb": errors.append,
        "log_level": 0,
        "reconnect.backoff.ms": 500,
    }
    if fields.mechanism:
        made["sasl.mechanism"] = fields.mechanism
    if fields.mechanism == "OAUTHBEARER":
        made["oauth_cb"] = lambda _: (fields.password, time.time() + 600)
    elif fields.mechanism:
        made |= {"sasl.username": fields.user, "sasl.password": fields.password}
    if fields.protocol.endswith("SSL"):
        made["ssl.ca.location"] = fields.authority
    if fields.own:
        made |= {"ssl.certificate.location": fields.own, "ssl.key.location": fields.own}
    return made


def raise_reason(errors: list[Any], *, at_last: bool) -> None:
    """Raise what an error callback got; news of a lost connection only when nothing better has come."""
    names = [each.name() for each in errors]
    reasons = [name for name in names if name not in EARLY_NEWS] or (names if at_last else [])
    if reasons:
        raise Refused(reasons[0])


def confluent(fields: Fields) -> None:
    """Raises Refused or KafkaException."""
    errors: list[Any] = []
    actions = {"write": confluent_write, "read": confluent_read, "transaction": confluent_transaction}
    actions.get(fields.action, confluent_acls)(fields, confluent_settings(fields, errors), errors)


def confluent_write(fields: Fields, settings: dict[str, Any], errors: list[Any]) -> None:
    """Until the record is delivered, or an error is reported."""
    from confluent_kafka import Producer

    delivered: list[Any] = []
    producer = Producer(settings)
    producer.produce(fields.resource, b"x", on_delivery=lambda error, _: delivered.append(error))
    end = time.monotonic() + WAIT_S
    while not delivered and time.monotonic() < end:
        producer.poll(0.1)
        raise_reason(errors, at_last=False)
        if errors:
            end = min(end, time.monotonic() + NEWS_S)
    raise_reason([each for each in delivered if each is not None], at_last=True)
    if not delivered:
        raise_reason(errors, at_last=True)
        raise Refused("no answer")


def confluent_read(fields: Fields, settings: dict[str, Any], errors: list[Any]) -> None:
    """Until a record is read, or an error is reported."""
    from confluent_kafka import Consumer

    consumer = Consumer(settings | {"group.id": fields.resource, "auto.offset.reset": "earliest"})
    consumer.subscribe(["open"])
    end = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < end:
            message = consumer.poll(0.1)
            raise_reason(errors, at_last=False)
            if message is not None:
                raise_reason([message.error()] if message.error() else [], at_last=True)
                return
    finally:
        consumer.close()
    raise Refused("no answer")


def confluent_transaction(fields: Fields, settings: dict[str, Any], errors: list[Any]) -> None:
    """Gets a producer id."""
    from confluent_kafka import Producer

    Producer(settings | {"transactional.id": fields.resource}).init_transactions(WAIT_S)
    raise_reason(errors, at_last=False)


def confluent_acls(_: Fields, settings: dict[str, Any], errors: list[Any]) -> None:
    """Creates an ACL: librdkafka drops the error of a list that is refused, and returns an empty one."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient(settings)  # its end would end its futures
    one = AclBinding(
        ResourceType.TOPIC,
        "open",
        ResourcePatternType.LITERAL,
        "User:x",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([one]).values():
        future.result(WAIT_S)
    raise_reason(errors, at_last=False)


# -- kafka-python ------------------------------------------------------------------------------------------------------


def kafka_python_settings(fields: Fields) -> dict[str, Any]:
    """The arguments of kafka-python."""
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Token(AbstractTokenProvider):
        def token(self) -> str:
            return fields.password

    made: dict[str, Any] = {"bootstrap_servers": fields.bootstrap, "security_protocol": fields.protocol}
    made["bootstrap_timeout_ms"] = WAIT_S * 1000 // 3
    if fields.mechanism:
        made["sasl_mechanism"] = fields.mechanism
    if fields.mechanism == "OAUTHBEARER":
        made["sasl_oauth_token_provider"] = Token()
    elif fields.mechanism:
        made |= {"sasl_plain_username": fields.user, "sasl_plain_password": fields.password}
    if fields.protocol.endswith("SSL"):
        made["ssl_cafile"] = fields.authority
    if fields.own:
        made |= {"ssl_certfile": fields.own, "ssl_keyfile": fields.own}
    return made


def kafka_python(fields: Fields) -> None:
    """Raises the library's errors."""
    settings = kafka_python_settings(fields)
    actions = {"write": kafka_python_write, "read": kafka_python_read, "transaction": kafka_python_transaction}
    actions.get(fields.action, kafka_python_acls)(fields, settings)


def kafka_python_write(fields: Fields, settings: dict[str, Any]) -> None:
    """One record."""
    from kafka import KafkaProducer

    producer = KafkaProducer(**settings, max_block_ms=WAIT_S * 1000)
    try:
        producer.send(fields.resource, b"x").get(WAIT_S)
    finally:
        producer.close(1)


def kafka_python_read(fields: Fields, settings: dict[str, Any]) -> None:
    """One record."""
    from kafka import KafkaConsumer
    from kafka.errors import KafkaTimeoutError

    consumer = KafkaConsumer("open", **settings, group_id=fields.resource, auto_offset_reset="earliest")
    end = time.monotonic() + WAIT_S
    try:
        while not consumer.poll(200):
            if time.monotonic() > end:
                raise KafkaTimeoutError("no record")
    finally:
        consumer.close(autocommit=False)


def kafka_python_transaction(fields: Fields, settings: dict[str, Any]) -> None:
    """Gets a producer id."""
    from kafka import KafkaProducer

    producer = KafkaProducer(**settings, transactional_id=fields.resource, max_block_ms=WAIT_S * 1000)
    try:
        producer.init_transactions()
    finally:
        producer.close(1)


def kafka_python_acls(_: Fields, settings: dict[str, Any]) -> None:
    """Lists the ACLs."""
    from kafka import KafkaAdminClient
    from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ResourcePatternFilter, ResourceType
    from kafka.admin import ACLResourcePatternType as PatternType

    admin = KafkaAdminClient(**settings)
    try:
        everything = ResourcePatternFilter(ResourceType.ANY, None, PatternType.ANY)
        _found, error = admin.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, everything))
        if error.errno:
            raise error if isinstance(error, Exception) else error()
    finally:
        admin.close()


# -- aiokafka ----------------------------------------------------------------------------------------------------------


def aiokafka_settings(fields: Fields) -> dict[str, Any]:
    """The arguments of aiokafka."""
    from aiokafka.abc import AbstractTokenProvider

    class Token(AbstractTokenProvider):
        async def token(self) -> str:
            return fields.password

    made: dict[str, Any] = {"bootstrap_servers": fields.bootstrap, "security_protocol": fields.protocol}
    if fields.mechanism:
        made["sasl_mechanism"] = fields.mechanism
    if fields.mechanism == "OAUTHBEARER":
        made["sasl_oauth_token_provider"] = Token()
    elif fields.mechanism:
        made |= {"sasl_plain_username": fields.user, "sasl_plain_password": fields.password}
    if fields.protocol.endswith("SSL"):
        made["ssl_context"] = context = ssl.create_default_context(cafile=fields.authority)
        if fields.own:
            context.load_cert_chain(fields.own)
    return made


def aiokafka(fields: Fields) -> None:
    """Raises the library's errors."""
    actions: dict[str, Callable[[Fields, dict[str, Any]], Awaitable[None]]] = {
        "write": aiokafka_write,
        "read": aiokafka_read,
        "transaction": aiokafka_transaction,
    }

    async def run() -> None:
        await asyncio.wait_for(actions[fields.action](fields, aiokafka_settings(fields)), WAIT_S)

    asyncio.run(run())


async def aiokafka_write(fields: Fields, settings: dict[str, Any]) -> None:
    """One record."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(**settings)
    try:
        await producer.start()
        await producer.send_and_wait(fields.resource, b"x")
    finally:
        await producer.stop()


async def aiokafka_read(fields: Fields, settings: dict[str, Any]) -> None:
    """One record."""
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer("open", **settings, group_id=fields.resource, auto_offset_reset="earliest")
    try:
        await consumer.start()
        await consumer.getone()
    finally:
        await consumer.stop()


async def aiokafka_transaction(fields: Fields, settings: dict[str, Any]) -> None:
    """Gets a producer id."""
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(**settings, transactional_id=fields.resource)
    try:
        await producer.start()
    finally:
        await producer.stop()


LIBRARIES: dict[str, Callable[[Fields], None]] = {
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def outcome(library: str, fields: Fields) -> str:
    """ok, or the name of the error."""
    from confluent_kafka import KafkaException

    try:
        LIBRARIES[library](fields)
    except Refused as refused:
        return str(refused)
    except KafkaException as error:
        return str(error.args[0].name())
    except Exception as error:  # the libraries raise different types
        return type(error).__name__
    return "ok"


def main() -> None:
    """Answer every line of standard input."""
    logging.disable()
    for line in sys.stdin:
        print(outcome(sys.argv[1], Fields(*line.rstrip("\n").split("\t"))), flush=True)


if __name__ == "__main__":
    main()
