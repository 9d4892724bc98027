"""The cost of a single record in the producer, counted in Python calls: a budget for the latency.

Zone: real. The result does not depend on timing.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType

from tests.client.producer.bench import MARKS, Bench

from ottla.client import Producer

pytestmark = MARKS

BUDGET = 90
"""Python calls from `send` to the callback, in both threads; includes some of the round after it."""
RECORDS = 100


def test_a_record_alone(bench: Bench, producer: Callable[..., Producer]) -> None:
    counting = False
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if counting and event == "call":
            calls[frame.f_code.co_qualname] += 1

    threading.setprofile(count)
    one = producer(linger_ms=0)
    threading.setprofile(None)
    topic = bench.topic()
    for _ in range(5):
        one.send(topic, b"warm").result(180)
    told: SimpleQueue[None] = SimpleQueue()
    sys.setprofile(count)
    counting = True
    for _ in range(RECORDS):
        one.send(topic, b"x" * 100, on_delivery=lambda *_: told.put(None))
        told.get(timeout=180)
    counting = False
    sys.setprofile(None)
    one.close()
    assert sum(calls.values()) / RECORDS <= BUDGET, calls.most_common(40)
