"""A client of kafka-python 1.4, with an optional broker version. It runs with that package's own directory.

Zone: real. One JSON object in (standard input), one out:

    {"act": "write", "bootstrap": …, "version": [0, 9], "topic": …, "codecs": ["gzip"], "rows": [[key, value, ms], …]}
    {"act": "read", …, "topic": …}          → [[offset, key, value, ms or null], …] from the beginning to the end
    {"act": "group", …, "topic": …, "group": …, "count": 3}   → the values of that many records, then committed
    {"act": "commit", …, "topic": …, "group": …, "offset": 5} → the position that was there before, or null

Keys and values are base64 or null.
"""

from __future__ import annotations

import base64
import json
import sys
import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

WAIT_S = 120


def decoded(text):
    return None if text is None else base64.b64decode(text)


def encoded(content):
    return None if content is None else base64.b64encode(content).decode()


def write(job, settings):
    done = []
    for codec in job["codecs"]:
        kind = None if codec == "none" else codec
        producer = KafkaProducer(compression_type=kind, acks=-1, retries=5, linger_ms=20, **settings)
        futures = []
        for key, value, stamp in job["rows"]:
            more = {"timestamp_ms": stamp} if settings["api_version"] >= (0, 10) else {}
            future = producer.send(job["topic"], decoded(value), decoded(key), partition=0, **more)
            futures.append(future)
        producer.flush(WAIT_S)
        done += [future.get(WAIT_S).offset for future in futures]
        producer.close()
    return done


def read(job, settings):
    consumer = KafkaConsumer(group_id=None, check_crcs=True, fetch_max_wait_ms=50, **settings)
    where = TopicPartition(job["topic"], 0)
    consumer.assign([where])
    consumer.seek_to_end(where)
    end = consumer.position(where)
    consumer.seek_to_beginning(where)
    found, deadline = [], time.monotonic() + WAIT_S
    while consumer.position(where) < end:
        assert time.monotonic() < deadline, f"stuck at {consumer.position(where)} of {end}"
        records = consumer.poll(500).get(where, ())
        found += [[each.offset, encoded(each.key), encoded(each.value), each.timestamp] for each in records]
    consumer.close()
    return found


def group(job, settings):
    consumer = KafkaConsumer(
        job["topic"],
        group_id=job["group"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=10_000,
        fetch_max_wait_ms=50,
        max_poll_records=1,
        **settings,
    )
    found, deadline = [], time.monotonic() + WAIT_S
    while len(found) < job["count"]:
        assert time.monotonic() < deadline, f"only {len(found)} records"
        for records in consumer.poll(500).values():
            found += [encoded(each.value) for each in records]
    consumer.commit()
    consumer.close(autocommit=False)
    return found


def commit(job, settings):
    consumer = KafkaConsumer(group_id=job["group"], enable_auto_commit=False, **settings)
    where = TopicPartition(job["topic"], 0)
    consumer.assign([where])
    before = consumer.committed(where)
    consumer.commit({where: OffsetAndMetadata(job["offset"], "")})
    after = consumer.committed(where)
    consumer.close()
    assert after == job["offset"], after
    return before


def main():
    job = json.load(sys.stdin)
    settings = {"bootstrap_servers": job["bootstrap"], "api_version": tuple(job["version"])}
    act = {"write": write, "read": read, "group": group, "commit": commit}[job["act"]]
    json.dump(act(job, settings), sys.stdout)


if __name__ == "__main__":
    main()
