"""The producers and consumers of a run, as processes on the clients' host.

Zone: real. producer.py, consumer.py and ChaosClient.java are the programs; this module starts, watches and ends them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from testbench.chaos.arena import Arena
from testbench.chaos.login import LOGIN
from testbench.java_program import command as java_command

HERE = Path(__file__).parent
LINE_MAX = 200
"""More bytes than two lines of counts."""


class Client:
    """One client process, which prints its counts on standard output, and ends when its standard input ends."""

    def __init__(self, name: str, command: list[str], arena: Arena, library: str = "librdkafka") -> None:
        """`library`: librdkafka or java, which have different settings of logins."""
        self.name = name
        login = {LOGIN: str(arena.security.login_file(library))} if arena.security else {}
        self.out = arena.directory / f"{name}.out"
        """The file that it writes at its end."""
        self._said = arena.directory / f"{name}.counts"
        self.errors = arena.directory / f"{name}.err"
        with self._said.open("wb") as said, self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*arena.client.prefix, *command, str(self.out)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=errors,
                process_group=0,
                env=os.environ | login,
            )

    def counts(self) -> list[int]:
        """The counts that it printed last; empty before the first."""
        with self._said.open("rb") as said:
            said.seek(max(0, said.seek(0, os.SEEK_END) - LINE_MAX))
            lines = said.read().rpartition(b"\n")[0].splitlines()
        return [int(word) for word in lines[-1].split()] if lines else []

    def pause(self) -> None:
        """Stop it until `resume`; nothing if it has ended."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue."""
        self._process.send_signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """Close its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def await_end(self, wait_s: float) -> str | None:
        """A complaint when it does not end, or ends with an error."""
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self.name} did not end within {wait_s:.0f} s: {self.counts()} {self.printed_errors()}"
        return f"{self.name} ended with exit code {code}: {self.printed_errors()}" if code else None

    def printed_errors(self) -> str:
        """The end of its standard error."""
        return self.errors.read_text(errors="replace")[-1_000:].strip()

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._process.kill()
        self._process.wait()


class Clients:
    """All clients of a run: two producers of librdkafka and one of Java, and a consumer of each library."""

    def __init__(self, arena: Arena, topic: str, partitions: int, rate: float) -> None:
        """`rate`: records a second of all producers together, while nothing is wrong."""
        self._arena = arena
        self._where = [arena.bootstrap, topic, str(partitions)]
        self.producers: dict[int, Client] = {}
        self.consumers: list[Client] = []
        try:
            python, java = (self._python("producer.py"), "librdkafka"), (self._java("produce"), "java")
            for number, (command, library) in enumerate([python, python, java]):
                words = [*command, str(number), str(rate / 3)]
                self.producers[number] = Client(f"producer-{number}", words, arena, library)
            self.consumers.append(self.read("consumer-librdkafka"))
            self.consumers.append(Client("consumer-java", self._java("consume"), arena, "java"))
        except BaseException:
            self.kill()
            raise

    def _python(self, script: str) -> list[str]:
        return [sys.executable, str(HERE / script), *self._where]

    def _java(self, mode: str) -> list[str]:
        return java_command("ChaosClient", mode, *self._where)

    def read(self, name: str) -> Client:
        """One more consumer, from the beginning."""
        return Client(name, self._python("consumer.py"), self._arena)

    def acknowledged(self) -> dict[int, int]:
        """Producer → records acknowledged so far."""
        return {number: (client.counts() or [0, 0, 0])[1] for number, client in self.producers.items()}

    def failed(self) -> int:
        """Records given up so far."""
        return sum((client.counts() or [0, 0, 0])[2] for client in self.producers.values())

    def dead(self) -> list[str]:
        """Names of clients that ended by themselves."""
        return [client.name for client in [*self.producers.values(), *self.consumers] if not client.alive]

    def kill(self) -> None:
        """SIGKILL to all."""
        for client in [*self.producers.values(), *self.consumers]:
            client.kill()
