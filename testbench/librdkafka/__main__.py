"""librdkafka's own tests against three brokers: python -m testbench.librdkafka --source DIR [--broker ottla|kafka] …

DIR is a checkout of the project confluentinc/librdkafka at a release tag; the scores in docs/chaos.md are those of
v2.15.0. The library and its test runner are built once and kept in the cache. Tests run in the runner's quick mode, one
after the other; tests that need no broker, another scenario or SASL and TLS are left out. Exit code 1 when a test fails
that is not in the list of expected failures (testbench/librdkafka/expected.py), or when a broker wrote a traceback.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from testbench.apache_kafka.packages import BenchError
from testbench.librdkafka.build import Runner, build_runner
from testbench.librdkafka.expected import EXPECTED
from testbench.librdkafka.run import BROKERS, find_complaints, prepare_place, run_number, start_brokers
from testbench.librdkafka.table import (
    Outcome,
    choose_tests,
    expected_of,
    format_row,
    format_totals,
    list_tests,
    to_json,
)
from testbench.process import NodeError


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m testbench.librdkafka", description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="a checkout of confluentinc/librdkafka")
    parser.add_argument("--broker", choices=BROKERS, default="ottla", help="what runs (default ottla)")
    parser.add_argument("--tests", help="numbers with commas between them; default: all that need a broker")
    parser.add_argument("--full", action="store_true", help="run all parts of each test, not those of quick mode alone")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each number (default 600)")
    parser.add_argument("--out", type=Path, help="where logs go; default: build/librdkafka/<broker>-<time>")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="how results are printed")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Build, run, print the table."""
    options = parse(arguments)
    out = (options.out or Path("build") / "librdkafka" / f"{options.broker}-{time.strftime('%Y%m%d-%H%M%S')}").resolve()
    brokers = out / "brokers"
    if brokers.exists():
        print(f"librdkafka: {brokers} is there already: remove it, or name another place with --out", file=sys.stderr)
        return 2
    brokers.mkdir(parents=True)
    try:
        runner = build_runner(options.source.resolve())
        chosen = choose_tests(list_tests(runner.source), options.tests)
        expected = EXPECTED[options.broker]
        with start_brokers(options.broker, brokers) as bootstrap:
            prepare_place(runner, out, bootstrap)
            outcomes = run_tests(runner, chosen, out, options, expected)
    except (BenchError, NodeError, ValueError) as error:
        print(f"librdkafka: {error}", file=sys.stderr)
        return 2
    head = {
        "librdkafka": runner.version,
        "broker": options.broker,
        "complaints": find_complaints(brokers),
        "logs": str(out),
    }
    return print_verdict(head, outcomes, expected, options.output)


def run_tests(
    runner: Runner, chosen: dict[str, list[str]], out: Path, options: argparse.Namespace, expected: dict[str, str]
) -> list[Outcome]:
    """Run all; prints each row when its test ends, to standard error if standard output has JSON."""
    file = sys.stdout if options.output == "text" else sys.stderr
    outcomes: list[Outcome] = []
    for number, tests in chosen.items():
        for outcome in run_number(runner, number, tests, out, options.timeout, full=options.full):
            outcomes.append(outcome)
            print(format_row(outcome, expected), file=file, flush=True)
    return outcomes


def print_verdict(head: dict[str, Any], outcomes: list[Outcome], expected: dict[str, str], output: str) -> int:
    """The totals, or everything as JSON. Returns the exit code."""
    if output == "json":
        print(json.dumps(head | to_json(outcomes, expected), indent=2))
    else:
        print(f"librdkafka {head['librdkafka']}, {head['broker']}: {format_totals(outcomes, expected)}")
        print(f"logs in {head['logs']}", *head["complaints"], sep="\n")
    return int(bool(head["complaints"]) or not all(expected_of(each, expected) for each in outcomes))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the brokers are also ended
    sys.exit(main(sys.argv[1:]))
