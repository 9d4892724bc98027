"""A record that fails waits in a retry topic, `ottla retry run` brings it back; in the end it is a dead letter.

$ python examples/produce.py && python examples/retries.py
$ ottla retry run --idle-exit 1; ottla dlq list
"""

import os

from ottla.client import Consumer, Producer
from ottla.client.consumer import ConsumerRecord
from ottla.retry import Retrier, RetryPolicy

BROKERS = {"bootstrap.servers": os.environ.get("OTTLA_BROKERS", "localhost:9092")}
SOURCE = {"group.id": "cook", "auto.offset.reset": "earliest", "enable.auto.commit": "false"}


def cook(record: ConsumerRecord) -> None:
    """What the program does with a record; some it cannot do now, some never."""
    if record.value == b"coffee":
        raise TimeoutError("the machine is busy")
    if record.value != b"tea":
        raise KeyError("not on the menu")


with Consumer(BROKERS | SOURCE) as consumer, Producer(BROKERS | {"transactional.id": "cook-1"}) as producer:
    consumer.subscribe(["orders"])
    producer.init_transactions()
    retrier = Retrier(producer, RetryPolicy.fixed(["1s", "5m"], abort_on=[KeyError]), group="cook")
    records = consumer.poll(10)
    with producer.transaction():
        for record in records:
            try:
                cook(record)
            except Exception as error:
                print(record.value, "->", retrier.retry_later(record, error).topic)
        producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
