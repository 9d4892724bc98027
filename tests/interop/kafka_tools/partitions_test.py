"""kafka-leader-election and kafka-log-dirs beside Apache Kafka's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.interop.kafka_tools.comparison import Comparison, run_ottla

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]
_FIRST = {"topic": "TOPIC", "partition": 0}
FILES = {
    "good": {"partitions": [_FIRST, {"topic": "TOPIC", "partition": 1}]},
    "mixed": {"partitions": [_FIRST, {"topic": "TOPIC", "partition": 7}]},
    "twice": {"partitions": [_FIRST, _FIRST]},
    "none": {"version": 1},
    "list": [1, {"a": "é"}],
    "empty": {"partitions": []},
    "less": {"partitions": [{"topic": "TOPIC"}]},
    "topic": {"partitions": [{"topic": 1, "partition": 0}]},
    "number": {"partitions": [{"topic": "TOPIC", "partition": "x"}]},
    "rows": {"partitions": 3},
    "row": {"partitions": [3]},
}
"""Files of --path-to-json-file, by name."""


def make_topics(both: Comparison, partitions: int) -> None:
    create = ("--create", "--topic", f"{both.ottla_prefix}a", "--partitions", str(partitions))
    for prefix in (both.kafka_prefix, both.ottla_prefix):
        words = [word.replace(both.ottla_prefix, prefix) for word in create]
        assert run_ottla("kafka-topics", ["--bootstrap-server", both.bootstrap, *words])[0] == 0


def test_leader_election(both: Comparison, tmp_path: Path) -> None:
    make_topics(both, 2)

    def make(prefix: str) -> None:
        for name, content in FILES.items():
            text = json.dumps(content, ensure_ascii=False).replace("TOPIC", f"{prefix}a")
            (tmp_path / f"{prefix}{name}").write_text(text)
        (tmp_path / f"{prefix}broken").write_text('{"partitions":[{')

    both.prepare(make)
    script = "\n".join(
        f"BS --election-type preferred --path-to-json-file {tmp_path}/{{name}}{file}"
        for file in (*FILES, "broken", "missing")
    )
    both.compare(
        "kafka-leader-election",
        script
        + """
        BS --election-type preferred --topic {name}a --partition 0
        BS --election-type Unclean --topic {name}a --partition 1
        BS --election-type PREFERRED --topic {name}a --partition 9
        BS --election-type PREFERRED --topic {name}nothing --partition -1
        BS --election-type preferred --all-topic-partitions
        BS
        --all-topic-partitions
        --topic x
        BS --election-type preferred
        BS --election-type foo --all-topic-partitions
        BS --election-type preferred --topic x
        BS --election-type preferred --partition 0
        BS --election-type preferred --topic x --partition y
        BS --election-type preferred --topic x --partition 3000000000
        BS --election-type unclean --all-topic-partitions --topic x --partition 0
        BS --election-type unclean --all-topic-partitions --partition 0
        BS --election-type unclean --topic x --path-to-json-file y
        BS --election-type unclean --all-topic-partitions --admin.config x --command-config y
        BS --election-type unclean --all-topic-partitions --admin.config /dev/null
        BS --election-type
        BS --nonsense
        """,
    )


def test_log_dirs(both: Comparison) -> None:
    make_topics(both, 1)
    both.compare(
        "kafka-log-dirs",
        """
        BS --describe --topic-list {name}a
        BS --describe --topic-list ,{name}a,{name}nothing, --broker-list 1,,1
        BS --describe --topic-list {name}nothing --broker-list +1
        BS --describe --broker-list 1,7,5
        BS --describe --broker-list x
        BS --describe --broker-list 3000000000
        BS --describe --broker-list ' 1'
        BS --describe --topic-list
        BS --nonsense
        BS
        --describe
        """,
    )
