"""The system calls for a new partition.

Zone: real.
"""

from __future__ import annotations

import os
from collections import Counter

from ottla.config.topic import TopicConfig
from ottla.types import TopicPartition

COUNT = 40
BUDGET = {"fsync": 2, "fdatasync": 0, "open": 5, "close": 5, "stat": 1, "mkdir": 1, "rename": 1, "scandir": 0}
"""System calls for each partition: `partition.metadata` is synced, and the name of its directory, nothing else."""


def test_a_new_partition_keeps_its_budget_of_system_calls(real_over, tmp_path, kit, monkeypatch) -> None:
    world = real_over(tmp_path)
    shelf = kit.Shelf(world)
    shelf.manager.create_log(TopicPartition("warm", 0), kit.TOPIC_ID, TopicConfig())
    world.settle()
    calls: Counter[str] = Counter()
    for name in BUDGET:
        call = getattr(os, name)

        def counted(*args, name=name, call=call, **keywords):
            calls[name] += 1
            return call(*args, **keywords)

        monkeypatch.setattr(os, name, counted)
    for partition in range(COUNT):
        log = shelf.manager.create_log(TopicPartition("t", partition), kit.TOPIC_ID, TopicConfig())
        log.begin_epoch(0)
    world.settle()
    monkeypatch.undo()
    per_partition = {name: calls[name] / COUNT for name in BUDGET}
    assert all(per_partition[name] <= most for name, most in BUDGET.items()), per_partition
