"""The output of librdkafka's test runner: its list of tests, its report, and a table of the results.

Zone: pure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

STATES = {"PASSED": "passed", "FAILED": "failed", "RUNNING": "failed", "SKIPPED": "skipped", "DNS": "skipped"}
"""The runner's words for the states of a test, and those of the table."""
REASON_LIMIT = 160
"""Maximum characters of a reason in the table; the log of the test has everything."""
DIGITS = 4
LEFT_OUT = {"TEST_F_LOCAL", "TEST_F_MANUAL", "TEST_F_KNOWN_ISSUE"}
"""Flags of tests that need no broker, that are started by hand, and that librdkafka's authors expect to fail."""
EMPTY_S = 0.001
"""A test that passes faster than this has not talked to a broker: quick mode left out each of its parts."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_FAILURE = re.compile(r"^### Test \"(?P<name>\w+).*? failed at .*###\n(?P<reason>.+)$", re.MULTILINE)
_SKIP = re.compile(r"^\[(?P<name>\w+).*SKIPPING TEST: (?P<reason>.+)$", re.MULTILINE)
_ENTRY = re.compile(r"\s*(?P<name>[0-9]{4}_\w+)\s*,\s*(?P<flags>[A-Z0-9_ |]+)")
_SCENARIO = re.compile(r"\.scenario\s*=\s*\"(?P<name>\w+)\"")


class Outcome(NamedTuple):
    """The result of a test."""

    name: str
    state: str
    """passed, failed or skipped"""
    seconds: float
    reason: str = ""
    """Why it failed or was skipped."""


def list_tests(source: str) -> list[str]:
    """The names of the tests in `tests/test.c` that need only a plain cluster, in their order."""
    found = []
    for entry in source.split("_TEST(")[1:]:
        match = _ENTRY.match(entry)
        if match is None or _SCENARIO.search(entry):
            continue
        if not LEFT_OUT & {flag.strip() for flag in match["flags"].split("|")}:
            found.append(match["name"])
    return found


def choose_tests(tests: Sequence[str], wanted: str | None) -> dict[str, list[str]]:
    """The tests by number: those of a list `0011,0044`, or all without one. Raises ValueError for an unknown number.

    Several tests may have one number, the four digits at the beginning of their names; the runner runs them together.
    """
    numbers = wanted.replace(",", " ").split() if wanted else [name[:DIGITS] for name in tests]
    chosen = {number: [name for name in tests if name[:DIGITS] == number] for number in numbers}
    if unknown := [number for number, found in chosen.items() if not found]:
        raise ValueError(f"no test that needs a broker and no special set-up has the number {', '.join(unknown)}")
    return chosen


def parse_report(report: str) -> dict[str, tuple[str, float]]:
    """State and seconds of each test by name, from the runner's report. Raises ValueError when it is not whole."""
    try:
        rows = json.loads(report)["tests"].values()
        return {row["name"]: (STATES[row["state"]], float(row["duration"])) for row in rows}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no report of the runner: {error!r}") from error


def find_reasons(output: str) -> dict[str, str]:
    """Why a test failed or was skipped, by name, as the runner printed it; the first failure counts."""
    plain = _COLOR.sub("", output)
    skips = {match["name"]: match["reason"].strip() for match in _SKIP.finditer(plain)}
    failures = reversed(list(_FAILURE.finditer(plain)))
    return skips | {match["name"]: match["reason"].strip() for match in failures}


def judge_run(tests: Iterable[str], report: str, output: str, ending: str | None, seconds: float) -> list[Outcome]:
    """One outcome for each of the tests that one process of the runner was to run.

    `ending` is the end of the process, None for exit code 0. A bad ending fails the tests that the report does not
    know, and those that passed when no test of the process accounts for it.
    """
    reasons = find_reasons(output)
    try:
        rows = parse_report(report)
    except ValueError:
        rows = {}
    found = []
    for name in tests:
        state, took = rows.get(name, ("failed", seconds))
        why = "" if state == "passed" else reasons.get(name, ending or "")
        if state == "passed" and took < EMPTY_S:
            state, why = "skipped", "quick mode leaves out all of its parts"
        found.append(Outcome(name, state, took, why))
    if ending is None or any(each.state == "failed" for each in found):
        return found
    return [each._replace(state="failed", reason=ending) if each.state == "passed" else each for each in found]


def judge_part(outcome: Outcome, part: str, output: str) -> Outcome:
    """The outcome of a process that ran one part of a test, under the name `test/part`."""
    if outcome.state == "passed" and f"{part}:" not in output:
        outcome = outcome._replace(state="skipped", reason="the test has no such part, or quick mode leaves it out")
    return outcome._replace(name=f"{outcome.name}/{part}")


def expected_of(outcome: Outcome, expected: Mapping[str, str]) -> bool:
    """Whether an outcome is as expected; a test that passes is never a complaint."""
    return outcome.state != "failed" or outcome.name in expected


def format_row(outcome: Outcome, expected: Mapping[str, str]) -> str:
    """One line of the table; the expected reason comes before the runner's own."""
    state = outcome.state
    reason = outcome.reason
    if state == "failed" and outcome.name in expected:
        state, reason = "failed, as expected", expected[outcome.name]
    elif outcome.name in expected and state == "passed":
        reason = "it was expected to fail: take it from the list of expected failures"
    if len(reason) > REASON_LIMIT:
        reason = reason[: REASON_LIMIT - 1] + "…"
    return f"{outcome.name:<60} {state:<20} {outcome.seconds:8.1f}  {reason}".rstrip()


def format_totals(outcomes: Sequence[Outcome], expected: Mapping[str, str]) -> str:
    """The line below the table."""
    counts = Counter(each.state for each in outcomes)
    surprises = sum(not expected_of(each, expected) for each in outcomes)
    failed = f"{counts['failed']} failed ({surprises} of them unexpectedly)"
    seconds = sum(each.seconds for each in outcomes)
    return f"{counts['passed']} passed, {failed}, {counts['skipped']} skipped in {seconds:.0f} s"


def to_json(outcomes: Sequence[Outcome], expected: Mapping[str, str]) -> dict[str, Any]:
    """The table as a JSON object."""
    counts = Counter(each.state for each in outcomes)
    return {
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": counts["skipped"],
        "unexpected": [each.name for each in outcomes if not expected_of(each, expected)],
        "tests": [each._asdict() | {"expected_failure": expected.get(each.name)} for each in outcomes],
    }
