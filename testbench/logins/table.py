"""The table of logins: cells from the outcomes at both brokers, and the page docs/login-matrix.md.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from testbench.logins.cases import ABSENT, ACL_ERRORS, CASES, CLIENTS, LOGIN_ERRORS, LOGINS, Case

Outcomes = Mapping[tuple[str, str], str]
"""ok or an error, by (client, name of the case)."""
_HEAD: Final = """# Logins, client by client

What seven client libraries get from Ottla and from Apache Kafka 4.4.0 in KRaft mode, each with the same listeners,
users and ACLs. `make logins` runs both brokers and writes this page (three minutes; it needs what `testbench/setup`
installs); a test checks that the page has every case, and runs some of them. A cell is what both brokers have in
common; where they differ it has both, first Ottla's. An error is what the application gets: the class of the exception
(Java, kafka-python, aiokafka, kafkajs), or the name of the error's code (librdkafka, kafkajs, franz-go).

The clients are Apache Kafka's own of 4.4.0 and 3.9.1, confluent-kafka (librdkafka), kafka-python, aiokafka, kafkajs
and franz-go. After a login each of them writes a record and waits for the acknowledgement. Tokens of OAUTHBEARER are
without a signature. The ACLs are asked of the topic for a record, of the group for its offsets, of the transactional id
for a producer id, and of the cluster for the list of ACLs; librdkafka drops the error of that list, and creates an ACL.
"""
_SECTIONS: Final[tuple[tuple[str, Sequence[Case]], ...]] = (
    ("Logins", LOGINS),
    ("Refused logins", LOGIN_ERRORS),
    ("Missing ACLs", ACL_ERRORS),
)


def differences(ottla: Outcomes, kafka: Outcomes) -> list[str]:
    """A line for each case in which the brokers differ."""
    return [
        f"{client}, {name}: Ottla {outcome}, Apache Kafka {kafka[client, name]}"
        for (client, name), outcome in ottla.items()
        if outcome != kafka[client, name]
    ]


def format_page(ottla: Outcomes, kafka: Outcomes) -> str:
    """The page."""
    parts = [_HEAD]
    for title, cases in _SECTIONS:
        parts.append(f"## {title}\n\n" + "\n".join(_rows(cases, ottla, kafka)) + "\n")
    return "\n".join(parts)


def _rows(cases: Sequence[Case], ottla: Outcomes, kafka: Outcomes) -> Iterable[str]:
    yield f"| case | {' | '.join(CLIENTS)} |"
    yield "|---" * (len(CLIENTS) + 1) + "|"
    for case in cases:
        cells = (_cell(client, case.name, ottla, kafka) for client in CLIENTS)
        yield f"| {case.name} | {' | '.join(cells)} |"


def _cell(client: str, name: str, ottla: Outcomes, kafka: Outcomes) -> str:
    if (client, name) in ABSENT:
        return ABSENT[client, name]
    mine, theirs = ottla[client, name], kafka[client, name]
    return mine if mine == theirs else f"{mine} / {theirs}"


def parse_page(text: str) -> dict[tuple[str, str], str]:
    """The cells of a page. Raises ValueError when a row has another number of cells than there are clients."""
    cells: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| case "):
            name, *row = (each.strip() for each in line.strip("|").split("|"))
            cells.update({(client, name): cell for client, cell in zip(CLIENTS, row, strict=True)})
    return cells


def every_case() -> set[tuple[str, str]]:
    """(client, name of the case) of each cell that a page has."""
    return {(client, case.name) for client in CLIENTS for case in CASES}
