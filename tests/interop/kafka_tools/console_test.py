"""kafka-console-consumer and kafka-console-producer beside Apache Kafka's own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from testbench.apache_kafka import tools
from testbench.clients import Confluent, Record
from tests.interop.kafka_tools.comparison import Comparison

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

PROPERTIES = " ".join(
    f"--property print.{name}=true" for name in ("timestamp", "partition", "offset", "headers", "key")
)


def test_console_consumer(both: Comparison) -> None:
    def make(prefix: str) -> None:
        records = [
            Record(b"k1", b"v1", (("h", b"1"), ("g", b"2")), 1_700_000_000_000),
            Record(b"", b"v2", (), 1_700_000_000_001),
            Record(b"k3", None, (("n", None),), 1_700_000_000_002),
        ]
        Confluent().write(both.bootstrap, f"{prefix}a", records)

    both.prepare(make)
    one = "--topic {name}a --partition 0"
    both.compare(
        "kafka-console-consumer",
        f"""
        BS --topic {{name}}a --from-beginning --max-messages 3
        BS {one} --from-beginning --max-messages 3 {PROPERTIES}
        BS {one} --offset 1 --max-messages 2 --formatter-property key.separator=| --formatter-property print.key=true
        BS {one} --offset 2 --max-messages 1 --formatter-property null.literal=NIL --formatter-property print.epoch=true
        BS {one} --offset earliest --max-messages 1 --property print.value=false --property print.delivery=true
        BS {one} --offset earliest --timeout-ms 1000
        BS {one} --offset earliest --timeout-ms 1000 --isolation-level read_committed
        """,
    )


def test_wrong_words_of_the_consumer(both: Comparison) -> None:
    both.compare(
        "kafka-console-consumer",
        """
        --topic x
        BS
        BS --topic x --include x
        BS --topic x --nonsense
        BS --topic x --offset 1
        BS --topic x --partition 0 --offset 1 --from-beginning
        BS --topic x --partition 0 --offset foo
        """,
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "one\ntwo\n\nlast"),
        (("--property", "parse.key=true", "--property", "null.marker=NIL"), "k\tv\nk2\tNIL\n"),
        (
            ("--reader-property", "parse.headers=true", "--reader-property", "parse.key=true", "--sync"),
            "a:1,b:2\tk\tv\n",
        ),
        (("--reader-property", "parse.key=true"), "k\tv\nnothing\n"),
    ],
)
def test_console_producer(both: Comparison, words: tuple[str, ...], text: str) -> None:
    found = []
    both.compare("kafka-topics", "BS --create --topic {name}a")
    for prefix in (both.kafka_prefix, both.ottla_prefix):
        line = ["--bootstrap-server", both.bootstrap, "--topic", f"{prefix}a", *words]
        if prefix == both.kafka_prefix:
            done = tools.run("4.4.0", "kafka-console-producer", *line, input=text)
        else:
            command = [sys.executable, "-m", "ottla.kafka_tools", "kafka-console-producer", *line]
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        stored = [each[:3] for each in Confluent().read(both.bootstrap, f"{prefix}a")]
        message = [part for part in done.stderr.splitlines() if "on line number" in part][:1]
        found.append((done.returncode, done.stdout.replace(">", ""), stored, [each[-30:] for each in message]))
    assert found[1] == found[0]
