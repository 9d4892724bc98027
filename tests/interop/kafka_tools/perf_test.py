"""The tools that measure beside Apache Kafka's own: numbers that depend on time are compared by their form."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.interop.kafka_tools.comparison import Comparison, run_ottla

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

_ADVICE = "The consumer rebalance protocol (KIP-848)"  # for a protocol that Ottla's consumer does not have
_USAGE = re.compile(r"usage: .*?(?=[\w-]+:\s+error:)", re.DOTALL)
_REPLACED = (
    (re.compile(r"--\s+(?=[a-z])"), "--"),  # argparse4j divides lines within options
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"), "DATE"),
    (re.compile(r"(?<=^0\t)\d+\.\d+|(?<=th = )\d+"), "MS"),
    # Latencies and times, and rates that follow from them; counts remain, and so does the number of digits.
    (re.compile(r"\d+(?=[\d.]* (?:records/sec|ms|MB/sec|max))"), "N"),
    (re.compile(r"\b\d+\.(?=\d{4}\b)"), "N."),
    (re.compile(r"(?<=N)\.\d+"), lambda found: "." + "D" * (len(found[0]) - 1)),
    (re.compile(r", \d+, \d+(?=, N|, NaN)"), ", TIMES"),
)


def form(text: str, *, progress: bool) -> list[str]:
    """The lines without what depends on time. progress: only the different lines, without numbers of records."""
    shown = _USAGE.sub("", text)
    lines = [
        line
        for line in shown.splitlines()
        if not re.match(r"\s+at |Caused by: |\s+\.\.\. \d+ more", line) and not line.startswith(_ADVICE)
    ]
    if any(line.startswith("Option  ") for line in lines):
        lines = lines[: next(at for at, line in enumerate(lines) if line.startswith("Option  "))]
    if " error:" in shown:
        lines = [" ".join(" ".join(lines).split())]
    for pattern, replacement in _REPLACED:
        lines = [pattern.sub(replacement, line) for line in lines]
    if progress:
        return sorted({re.sub(r"\d+", "N", line) for line in lines})
    return [line for line in lines if line.strip()]


def compare(both: Comparison, tool: str, script: str, *, progress: bool = False) -> None:
    """Run each line with both tools; exit codes and forms must be equal."""
    for line in script.strip().splitlines():
        found = []
        for mine, prefix in ((False, both.kafka_prefix), (True, both.ottla_prefix)):
            filled = line.strip().replace("{name}", prefix).replace("BS", f"--bootstrap-server {both.bootstrap}")
            words = shlex.split(filled.replace("SERVER", both.bootstrap))
            code, text = run_ottla(tool, words) if mine else both.shell.run(tool, *words)
            found.append((code, form(text.replace(prefix, "NAME"), progress=progress)))
        assert found[1] == found[0], f"{tool} {line.strip()}"


MANY = "--num-records 40 --throughput -1 --record-size 10000"
RECORDS = "--topic {name}a --num-records 30 --throughput -1"


def test_producer_perf_test(both: Comparison, tmp_path: Path) -> None:
    payloads = tmp_path / "payloads"
    payloads.write_text("alpha\nbeta\n\ngamma\n")
    both.compare("kafka-topics", "BS --create --topic {name}a")
    compare(
        both,
        "kafka-producer-perf-test",
        f"""
        {RECORDS} BS --record-size 100
        {RECORDS} BS --record-size 100 --warmup-records 10
        {RECORDS} BS --payload-file {payloads}
        {RECORDS} BS --payload-file {payloads} --payload-delimiter a|t
        {RECORDS} BS --payload-mono --transaction-duration-ms 1000
        {RECORDS} BS --payload-monotonic --transactional-id {{name}} --warmup-records -1
        {RECORDS} --payload-monotonic --producer-props bootstrap.servers=SERVER acks=1 --producer.config /dev/null
        {RECORDS} --payload-monotonic --command-property bootstrap.servers=SERVER linger.ms=1 --topic {{name}}a
        """,
    )
    # The number of lines of progress depends on time; each acknowledgement takes longer than a millisecond.
    rated = "BS --topic {name}a --num-records 60 --throughput 300 --reporting-interval 1 --record-size 10"
    compare(both, "kafka-producer-perf-test", f"{rated}\n{rated} --warmup-records 30", progress=True)


def test_consumer_perf_test(both: Comparison) -> None:
    both.prepare(
        lambda prefix: run_ottla(
            "kafka-producer-perf-test",
            f"--bootstrap-server {both.bootstrap} --topic {prefix}a {MANY}".split(),
        )
    )
    compare(
        both,
        "kafka-consumer-perf-test",
        """
        BS --topic {name}a --num-records 40
        BS --include {name}. --messages 40 --consumer.config /dev/null --hide-header
        BS --topic {name}a --num-records 41 --timeout 300 --group {name}
        BS --topic {name}a --num-records 41 --timeout 300 --date-format 'yyyy' --from-latest
        BS --topic {name}a --num-records 1 --show-detailed-stats --reporting-interval 1 --command-property client.id=x
        """,
    )


LATENCY = "BS --topic {name}e --num-records 2 --producer-acks"


def test_e2e_latency(both: Comparison) -> None:
    compare(
        both,
        "kafka-e2e-latency",
        f"""
        {LATENCY} all --record-size 20
        {LATENCY} 1 --record-size 0 --record-key-size 3 --command-config
        {LATENCY} 1 --record-size 5 --num-headers 2 --record-header-key-size 3 --record-header-size -1 word
        SERVER {{name}}e 2 all 20 /dev/null
        """,
    )
    for tool, words in (("kafka-topics", "--describe"), ("kafka-get-offsets", "")):
        both.compare(tool, f"BS {words} --topic {{name}}e")


def test_wrong_words_of_e2e_latency(both: Comparison) -> None:
    compare(
        both,
        "kafka-e2e-latency",
        f"""
        {LATENCY} 0 --record-size 20
        {LATENCY} 1
        {LATENCY} 1 --record-size x
        {LATENCY} 1 --record-size -1
        {LATENCY} 1 --record-size 3000000000
        {LATENCY} 1 --record-size 1 --num-records 0
        BS --topic {{name}}e --num-records 0 --producer-acks 1 --record-size 1
        {LATENCY} 1 --record-size 1 --record-header-size -2
        {LATENCY} 1 --record-size 1 --num-headers -1
        {LATENCY} 1 --record-size 1 --nonsense
        {LATENCY} 1 --record-size 1 --topic
        BS --topic {{name}}/e --num-records 2 --producer-acks 1 --record-size 1
        SERVER {{name}}e 2 0 20
        SERVER {{name}}e 2 1
        """,
    )


def test_wrong_words(both: Comparison, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    compare(
        both,
        "kafka-producer-perf-test",
        f"""
        --topic x --num-records 1 --record-size 1
        {RECORDS} --record-size 100
        {RECORDS} BS
        {RECORDS} BS --record-size 100 --payload-monotonic
        {RECORDS} BS --record-size x
        {RECORDS} BS --record-size 0
        {RECORDS} BS --record-size 1 --num-records -3
        {RECORDS} BS --record-size 1 --throughput x
        {RECORDS} BS --record-size 1 --warmup-records 30
        {RECORDS} BS --record-size 1 --reporting-interval 0
        {RECORDS} BS --record-size 1 --transaction-duration-ms 0
        {RECORDS} --record-size 1 --producer-props a=b --command-property c=d
        {RECORDS} --record-size 1 --producer.config a --command-config b
        {RECORDS} BS --record-size 1 --command-property acks
        {RECORDS} BS --record-size 1 --command-property a=b=c
        {RECORDS} BS --record-size 1 --nonsense
        {RECORDS} BS --record-size 1 word
        {RECORDS} BS --payload-file {tmp_path}/empty
        {RECORDS} BS --payload-file {tmp_path}/missing
        --topic
        """,
    )
    compare(
        both,
        "kafka-consumer-perf-test",
        """
        BS
        BS --topic x
        BS --num-records 1
        --topic x --num-records 1
        --num-records 1
        BS --topic x --include x --num-records 1
        BS --topic x --messages 1 --num-records 1
        BS --topic x --num-records 1 --consumer.config x --command-config x
        BS --topic x --num-records x
        BS --topic x --num-records 1 --reporting-interval 0
        BS --topic x --num-records 1 --reporting-interval x
        BS --topic x --num-records 1 --fetch-size x
        BS --topic x --num-records 1 --date-format QQ
        BS --topic x --num-records 1 --group a --group b
        BS --topic x --num-records
        --nonsense
        """,
    )
