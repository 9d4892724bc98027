"""The table of logins: its page has every case, and some clients get at both brokers what the page has.

Zone: real. `make logins` runs all clients and writes the page.
"""

from __future__ import annotations

import pytest
from testbench.logins.__main__ import PAGE
from testbench.logins.brokers import LoginBroker
from testbench.logins.cases import ABSENT, ACL_ERRORS, CASES, LOGIN_ERRORS, LOGINS, Case
from testbench.logins.clients import LoginClient
from testbench.logins.table import differences, every_case, format_page, parse_page

DOSE = {
    "franz-go": (LOGINS[1], LOGINS[-1], LOGIN_ERRORS[4], *ACL_ERRORS),
    "aiokafka": (LOGINS[1], LOGINS[-1], ACL_ERRORS[0]),
    "confluent": (LOGINS[2], LOGIN_ERRORS[1], ACL_ERRORS[2]),
    "java-4.4.0": (LOGINS[5], *LOGIN_ERRORS[:2], LOGIN_ERRORS[5]),
}
"""Cases that take a second at most."""


def test_the_page_has_every_case() -> None:
    cells = parse_page(PAGE.read_text())
    assert set(cells) == every_case(), "run `make logins`"
    assert format_page(cells, cells) == PAGE.read_text(), "run `make logins`"
    for client_and_case, reason in ABSENT.items():
        assert cells[client_and_case] == reason
    names = [each.name for each in LOGINS]
    assert {cell for (_, name), cell in cells.items() if name in names} == {"ok"}


def test_differences_are_shown_in_the_page() -> None:
    cells = dict.fromkeys(every_case(), "ok")
    other = cells | {("kafkajs", CASES[0].name): "refused"}
    assert differences(cells, other) == [f"kafkajs, {CASES[0].name}: Ottla ok, Apache Kafka refused"]
    assert parse_page(format_page(cells, other))["kafkajs", CASES[0].name] == "ok / refused"


@pytest.mark.interop
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("client", DOSE)
def test_a_client_gets_what_the_page_has(ottla: LoginBroker, apache: LoginBroker, client: str) -> None:
    cells = parse_page(PAGE.read_text())

    def expected(cases: tuple[Case, ...]) -> list[str]:
        return [cells[client, case.name] for case in cases]

    with LoginClient(client) as program:
        for broker in (ottla, apache):
            found = [program.outcome(case, broker) for case in DOSE[client]]
            assert found == expected(DOSE[client]), broker.name
