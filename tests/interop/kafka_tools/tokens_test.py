"""kafka-delegation-tokens beside Apache Kafka's own. Ids, HMACs and dates are compared by their form."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.ports import HOST, free_port
from tests.interop.kafka_tools.comparison import normalized, run_ottla

from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOOL: Final = "kafka-delegation-tokens"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS: Final = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": f'{_PLAIN} user_admin="admin" user_ann="ann";',
    "delegation.token.secret.key": "a secret of the brokers",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
}
_HMAC: Final = re.compile(r"[A-Za-z0-9+/]{86}==")
_VARYING: Final = (
    (_HMAC, "HMAC"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d"), "DATE"),
    (re.compile(r"(?<![\w-])[\w-]{22}(?![\w-])"), "ID"),
    # The rest of the reason is in Ottla's words.
    (re.compile(r"(Illegal base64|The HMAC is not base64|Input byte).*"), "WRONG"),
)
NOTHING: Final = "A" * 86 + "=="
"""The HMAC of no token."""


class Bench:
    """A broker with logins, and both tools at it."""

    def __init__(self, shell: ToolShell, login: str, plain: str, directory: Path) -> None:
        self._shell = shell
        self._directory = directory
        self._servers = {"BS": login, "PLAIN": plain}
        self._hmacs = {False: "", True: ""}

    def _login_file(self, user: str) -> str:
        path = self._directory / f"{user}.properties"
        login = f'sasl.jaas.config={_PLAIN} username="{user}" password="{user}";\n'
        path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n{login}")
        return str(path)

    def compare(self, script: str, *, user: str = "admin", ordered: bool = True) -> None:
        """Run each line with both tools. `{hmac}` is the HMAC that the side has seen last."""
        different = []
        for line in script.strip().splitlines():
            theirs, ours = (self._run(line.strip(), user, mine=mine) for mine in (False, True))
            if not ordered:
                theirs, ours = ((code, sorted(lines)) for code, lines in (theirs, ours))
            if ours != theirs:
                different.append(f"{line.strip()}\n  Apache Kafka {theirs}\n  Ottla        {ours}")
        assert not different, "\n".join(different)

    def _run(self, line: str, user: str, *, mine: bool) -> tuple[int, list[str]]:
        for name, address in self._servers.items():
            login = (
                f"--command-config {self._login_file(user)}" if name == "BS" else f"--command-config {self._empty()}"
            )
            line = line.replace(name, f"--bootstrap-server {address} {login}")
        words = shlex.split(line.replace("{hmac}", self._hmacs[mine]))
        code, text = run_ottla(TOOL, words) if mine else self._shell.run(TOOL, *words)
        if "Created delegation token" in text and (hmac := _HMAC.search(text)):
            self._hmacs[mine] = hmac[0]
        for pattern, replacement in _VARYING:
            text = pattern.sub(replacement, text)
        return code, [row.rstrip() for row in normalized(text, "") if row]

    def _empty(self) -> str:
        path = self._directory / "empty.properties"
        path.touch()
        return str(path)


@pytest.fixture(scope="module", params=["shell", "kafka_3_shell"], ids=["4.4", "3.9"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    shell = request.getfixturevalue(request.param)
    port = free_port()
    listeners = {"listeners": f"PLAINTEXT://{HOST}:0,LOGIN://{HOST}:{port}"}
    with EmbeddedBroker(config=SETTINGS | listeners) as broker:
        yield Bench(shell, f"{HOST}:{port}", broker.bootstrap, tmp_path_factory.mktemp("tokens"))


def test_tokens_are_made_shown_renewed_and_ended(bench: Bench) -> None:
    bench.compare(
        """
        BS --describe --owner-principal User:eve
        BS --create --max-life-time-period -1
        BS --create --max-life-time-period=86400000 --renewer-principal User:ann --renewer-principal User:bob
        BS --create --max-life-time-period 86400000 --owner-principal User:ann --renewer-principal 'User:a b'
        """
    )
    bench.compare(
        """
        BS --describe --owner-principal User:ann
        BS --describe --owner-principal User:admin --owner-principal ' User:ann'
        BS --describe --owner-principal User:eve
        """,
        ordered=False,
    )
    bench.compare(
        """
        BS --renew --hmac {hmac} --renew-time-period -1
        BS --renew --hmac {hmac} --renew-time-period 3600000
        BS --expire --hmac {hmac} --expiry-time-period 3600000
        BS --expire --hmac {hmac} --expiry-time-period=-1
        BS --expire --hmac {hmac} --expiry-time-period -1
        BS --renew --hmac {hmac} --renew-time-period -1
        """,
        user="ann",
    )


def test_tokens_that_are_refused(bench: Bench) -> None:
    bench.compare(
        f"""
        BS --renew --hmac {NOTHING} --renew-time-period -1
        BS --expire --hmac {NOTHING} --expiry-time-period -1
        BS --create --max-life-time-period -1 --renewer-principal Group:x
        PLAIN --create --max-life-time-period -1
        PLAIN --describe
        BS --create --max-life-time-period -1
        """
    )
    bench.compare(
        """
        BS --renew --hmac {hmac} --renew-time-period -1
        BS --expire --hmac {hmac} --expiry-time-period -1
        BS --create --max-life-time-period -1 --owner-principal User:admin
        """,
        user="ann",
    )


def test_wrong_words(bench: Bench) -> None:
    bench.compare(
        """
        --help
        --nonsense
        BS
        BS --create --describe
        --create --max-life-time-period 1
        --bootstrap-server x:1 --describe
        BS --create
        BS --renew --hmac x
        BS --renew --renew-time-period 1
        BS --expire --hmac x
        BS --expire --expiry-time-period 1
        BS --create --max-life-time-period 1 --hmac x
        BS --create --max-life-time-period 1 --renew-time-period 1
        BS --create --max-life-time-period 1 --expiry-time-period 1
        BS --renew --hmac x --renew-time-period 1 --renewer-principal User:x
        BS --renew --hmac x --renew-time-period 1 --max-life-time-period 1
        BS --renew --hmac x --renew-time-period 1 --expiry-time-period 1
        BS --renew --hmac x --renew-time-period 1 --owner-principal User:x
        BS --expire --hmac x --expiry-time-period 1 --max-life-time-period 1
        BS --expire --hmac x --expiry-time-period 1 --renew-time-period 1
        BS --expire --hmac x --expiry-time-period 1 --owner-principal User:x
        BS --describe --hmac x
        BS --describe --renew-time-period 1
        BS --create --max-life-time-period 1 --max-life-time-period 2
        BS --create --max-life-time-period 1 --renewer-principal ann
        BS --create --max-life-time-period 1 --owner-principal ann
        BS --describe --owner-principal ann
        BS --renew --hmac '!!' --renew-time-period 1
        BS --expire --hmac abc=d --expiry-time-period 1
        """
    )
