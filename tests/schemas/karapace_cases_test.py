"""The compatibility cases of Karapace's unit tests, another registry's: the same verdict, or a reason for another one.

Zone: pure. karapace_cases.jsonl has a case per line: two schemas, whether Karapace finds that the reader reads what the
writer wrote, and where Ottla's verdict differs, why. Those of Avro are Karapace's port of the tests of Apache Avro and
of Confluent's registry. Their origin is https://github.com/Aiven-Open/karapace, under the Apache License 2.0.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.formats import FORMATS, parse_schema

CASES: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("karapace_cases.jsonl").read_text().splitlines()
]
DOCS = Path(__file__).parents[2] / "docs" / "schemas.md"


def is_compatible(case: dict[str, Any]) -> bool:
    kind = case["type"]
    try:
        reader, writer = parse_schema(kind, case["reader"]), parse_schema(kind, case["writer"])
    except InvalidSchema:
        return False
    return not FORMATS[kind].find_incompatibilities(reader, writer)


@pytest.mark.parametrize("kind", FORMATS)
def test_verdicts_are_the_same_where_no_reason_is_given(kind: str) -> None:
    cases = [each for each in CASES if each["type"] == kind]
    wrong = [each for each in cases if (is_compatible(each) == each["compatible"]) == ("differs" in each)]
    assert cases
    assert not wrong


def test_the_reasons_are_in_the_documentation() -> None:
    found = Counter(each["differs"] for each in CASES if "differs" in each)
    text = DOCS.read_text()
    assert f"Of {len(CASES)} cases of Karapace's unit tests {len(CASES) - found.total()} have the same verdict" in text
    for reason, count in found.items():
        assert f"| {reason} | {count} |" in text
