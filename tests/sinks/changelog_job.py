"""A job for tests to kill: totals per folder of a topic into a changelog. BOOTSTRAP SOURCE CHANGELOG."""

from __future__ import annotations

import json
import sys

from ottla.client import Consumer
from ottla.client.consumer.record import ConsumerRecord
from ottla.sinks.changelog import Changelog


def folder(record: ConsumerRecord) -> ConsumerRecord:
    return record._replace(key=json.loads(record.value)["path"].split("/")[0].encode())


def add(total: bytes | None, record: ConsumerRecord) -> bytes:
    return b"%d" % (int(total or 0) + json.loads(record.value)["added"])


def run(changelog: Changelog, consumer: Consumer, source: str) -> None:
    """Until the end of the source as it is now."""
    places = consumer.partitions_for_topic(source)
    consumer.assign(places)
    for tp, offset in changelog.positions.items():
        consumer.seek(tp, offset)
    ends = consumer.end_offsets(places)
    while changelog.positions != ends:
        changelog.write(map(folder, consumer.poll(0.5)), add)
        print(len(dict(changelog.items())), flush=True)


if __name__ == "__main__":
    bootstrap, source, topic = sys.argv[1:]
    settings = {"bootstrap.servers": bootstrap}
    reading = {**settings, "auto.offset.reset": "earliest", "max.poll.records": "20"}
    with Changelog(settings, topic, partitions=3) as changelog, Consumer(reading) as consumer:
        run(changelog, consumer, source)
