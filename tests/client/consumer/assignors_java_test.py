"""Our assignors and Java's give the same members the same bytes, so that either may lead the group."""

from __future__ import annotations

import subprocess
from random import Random

import pytest
from tests.client.consumer.groups import ASSIGNORS, Case, draw_case, with_user_data

from ottla.client.consumer.assignment.assignors import Assignor
from ottla.client.consumer.protocol import decode_assignment, encode_assignment, encode_subscription
from testbench import java_program

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]
CASES = 600


def lines(case: Case, assignor: Assignor) -> str:
    """The input of testbench/java/Assignors.java for a case."""
    rows = [f"topic {name} {' '.join(','.join(sorted(r)) or '-' for r in each)}" for name, each in case.topics.items()]
    for name, each in case.members.items():
        rows.append(f"member {name} {each.instance_id or '-'} {encode_subscription(each).hex()}")
    return "\n".join([*rows, f"run {assignor.name}", ""])


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda each: each.name)
def test_java_assigns_the_same_bytes(assignor: Assignor) -> None:
    draw = Random(assignor.name)
    cases = [
        with_user_data(
            draw_case(draw, racks=draw.random() < 0.4, alike=draw.random() < 0.5, rivals=draw.random() < 0.2), assignor
        )
        for _ in range(CASES)
    ]
    words = java_program.command("Assignors")
    asked = "".join(lines(case, assignor) for case in cases)
    done = subprocess.run(words, input=asked, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = iter(done.stdout.split("\n"))
    compared = sum(equal(case, assignor, [next(answers) for _ in case.members]) for case in cases)
    assert compared > CASES * 0.9


def equal(case: Case, assignor: Assignor, answers: list[str]) -> bool:
    """Compares the results; False if Java has no result (see testbench/java/Assignors.java)."""
    ours = assignor.assign_partitions(case.topics, case.members)
    if "failed" in answers:
        return False
    theirs = {
        member: decode_assignment(bytes.fromhex(data)) for member, data in zip(case.members, answers, strict=True)
    }
    if any(tp.topic not in case.members[member].topics for member, got in theirs.items() for tp in got):
        return False
    assert [encode_assignment(ours[member]).hex() for member in case.members] == answers, (case, ours, theirs)
    return True
