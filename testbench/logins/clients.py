"""Client programs that log in: one process for each library, which gets a case as a line and answers with a line.

Zone: real.
"""

from __future__ import annotations

import base64
import json
import queue
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Final

from testbench import java_program, programs
from testbench.logins.brokers import LoginBroker
from testbench.logins.cases import Case

ANSWER_S: Final = 120
"""How long a case may take. Clients give up after 15 seconds, some of them more than once."""


def command(client: str) -> list[str]:
    """The command line of a client program. Raises BenchError."""
    if client.startswith("java-"):
        # The broker's packages: the library by itself makes no tokens, for want of Jackson.
        return java_program.command("LoginClient", version=client.removeprefix("java-"), part="broker")
    if client == "kafkajs":
        return programs.kafkajs_login()
    if client == "franz-go":
        return programs.franz_go_login()
    return [sys.executable, "-m", "testbench.logins.python_client", client]


def unsecured_token(user: str) -> str:
    """A token of OAUTHBEARER without a signature, valid for ten minutes."""

    def part(value: dict[str, str | int]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = int(time.time())
    return f"{part({'alg': 'none'})}.{part({'sub': user, 'iat': now, 'exp': now + 600})}."


def line_of(case: Case, broker: LoginBroker) -> str:
    """The line that a client program gets."""
    secret = unsecured_token(case.user) if case.mechanism == "OAUTHBEARER" else case.password
    files = broker.certificates
    fields = (
        broker.addresses[case.listener], case.protocol, case.mechanism, case.user, secret, files.authority,
        files.file(case.certificate), case.action, case.resource,
    )  # fmt: skip
    return "\t".join(fields)


class LoginClient:
    """The program of one library. Use as a context manager. Raises BenchError when it cannot be built."""

    def __init__(self, client: str) -> None:
        self.client = client
        self._command = command(client)
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()

    def outcome(self, case: Case, broker: LoginBroker) -> str:
        """`ok`, the name of the error, or `no answer`."""
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(line_of(case, broker) + "\n")
        process.stdin.flush()
        try:
            return self._answers.get(timeout=ANSWER_S)
        except queue.Empty:
            self._end()
            return "no answer"

    def _start(self) -> subprocess.Popen[str]:
        self._answers = queue.Queue()
        self._process = process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        threading.Thread(target=_pass_lines, args=(process, self._answers), daemon=True).start()
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def __enter__(self) -> LoginClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()


def _pass_lines(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            answers.put(line.rstrip("\n"))
    answers.put("the client has ended")
