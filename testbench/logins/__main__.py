"""Logins of seven libraries at Ottla and at Apache Kafka 4.4.0: `python -m testbench.logins [--clients A,B] [--write]`.

Without --write it only prints what differs; with it, and with all clients, it writes docs/login-matrix.md. Exit code 1
when the brokers differ.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from testbench.apache_kafka.packages import BenchError
from testbench.logins.brokers import LoginBroker, login_broker
from testbench.logins.cases import ABSENT, CASES, CLIENTS
from testbench.logins.certificates import Certificates
from testbench.logins.clients import LoginClient
from testbench.logins.table import differences, format_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "login-matrix.md"


def run_client(client: str, brokers: list[LoginBroker]) -> list[dict[tuple[str, str], str]]:
    """The outcomes of all cases of a client, one mapping for each broker. Raises BenchError."""
    found: list[dict[tuple[str, str], str]] = [{} for _ in brokers]
    with LoginClient(client) as program:
        for case in CASES:
            if (client, case.name) not in ABSENT:
                for outcomes, broker in zip(found, brokers, strict=True):
                    outcomes[client, case.name] = outcome = program.outcome(case, broker)
                    print(f"{client}, {case.name}, {broker.name}: {outcome}", file=sys.stderr)
    return found


def main(arguments: list[str]) -> int:
    """Run, print what differs, write the page."""
    parser = argparse.ArgumentParser(prog="python -m testbench.logins", description=__doc__)
    parser.add_argument("--clients", default=",".join(CLIENTS), help="some of them, with commas between")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    options = parser.parse_args(arguments)
    chosen = options.clients.split(",")
    if options.write and set(chosen) != set(CLIENTS):
        parser.error("--write needs all clients")
    logging.disable()  # each refused login is a line of Ottla's log
    ottla: dict[tuple[str, str], str] = {}
    kafka: dict[tuple[str, str], str] = {}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logins-")))
        certificates = Certificates(place)
        try:
            brokers = [stack.enter_context(login_broker(each, place, certificates)) for each in ("ottla", "kafka")]
            for client in chosen:
                for all_of, found in zip((ottla, kafka), run_client(client, brokers), strict=True):
                    all_of.update(found)
        except BenchError as error:
            print(f"logins: {error}", file=sys.stderr)
            return 2
    lines = differences(ottla, kafka)
    print("\n".join(lines or ["no difference"]))
    if options.write:
        PAGE.write_text(format_page(ottla, kafka))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
