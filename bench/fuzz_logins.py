#!/usr/bin/env python3
"""Connections that do not log in: every state of a login and of a handshake, followed by every wrong message.

    bench/fuzz_logins.py [--connections N] [--seed N]         without --connections until Ctrl-C

A broker has the listeners SSL (certificates required), SASL_PLAINTEXT and SASL_SSL, and all mechanisms. The broker has
to close each connection, and to accept no record on it. Exit code 1, with the seed and the case, on: an end of the
process, a traceback in its log, a login that must not succeed, no answer and no close, memory or descriptors that grow,
or a good client that cannot log in and produce.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import confluent_kafka
from testbench.ottla_node import OTTLA, OttlaNode
from testbench.ports import HOST, free_port

from bench import login_cases, work
from bench.login_cases import PASSWORD, STEPS, USER, Keys, Login
from bench.logins import LoginFailure, ask_versions, receive, tls_context
from ottla.wire.codec import decode
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import response_body_pos
from ottla.wire.messages import ProduceResponse, SaslAuthenticateResponse

PATIENCE_S = 60
"""Time for an answer or an end, also on a busy machine."""
CHECK_EVERY = 500
SERVICE_EVERY = 5_000
WARM = 2_000
"""Connections after which memory must not grow any more."""
GROWTH_MAX = 48 * 1024 * 1024
"""Allowed growth of resident memory in bytes: half-open connections, and the allocator's leftovers."""
DESCRIPTORS_MAX = 8
HALF_OPEN = 50
"""Connections that are left open in any state, until as many others have come."""
CONTAINED = "please report this"
TOPIC = "logins"


class Broken(Exception):
    """The broker did something that it must not do."""


class Ports(NamedTuple):
    """The listeners."""

    ssl: int
    plain: int
    sasl_ssl: int


class Target(OttlaNode):
    """A broker with the three listeners."""

    def __init__(self, directory: Path) -> None:
        self.keys = Keys()
        self.certificates = directory / "certificates"
        self.foreign = directory / "foreign"
        for path in (self.certificates, self.foreign):
            subprocess.run([*OTTLA, "tls", "make", str(path)], check=True, stdout=subprocess.DEVNULL)
        super().__init__(directory / "data", self._settings(directory))
        self.ports = Ports(free_port(), self.port, free_port())
        addresses = zip(
            ("SASL_PLAINTEXT", "SSL", "SASL_SSL"), (self.port, self.ports.ssl, self.ports.sasl_ssl), strict=True
        )
        self.settings["listeners"] = ",".join(f"{name}://{HOST}:{port}" for name, port in addresses)

    def _settings(self, directory: Path) -> dict[str, str]:
        users, jwks = directory / "users", directory / "keys.json"
        users.touch(0o600)
        users.write_text(f"{USER}={PASSWORD}\n")
        jwks.write_text(self.keys.jwks)
        return {
            "sasl.enabled.mechanisms": ",".join(login_cases.MECHANISMS),
            "ottla.sasl.users.file": str(users),
            "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
            "connection.failed.authentication.delay.ms": "1",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates / "ca.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
        }

    def descriptors(self) -> int:
        """Open descriptors of the process."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class LoginFuzz:
    """A broker, its attackers, and an ordinary client."""

    def __init__(self, node: Target, seed: int) -> None:
        hashlib.pbkdf2_hmac = functools.lru_cache(hashlib.pbkdf2_hmac)  # as clients that cache the salted password
        self.node = node
        self.rng = random.Random(seed)
        self.connections = self.closes = self.answers = 0
        self.rss = self.resident = 0
        self.reached: Counter[tuple[str, int, int, bool]] = Counter()
        """Wrong messages by mechanism, version of the handshake, steps before them, and whether it was within TLS."""
        self.case = ""
        self._open: list[socket.socket] = []
        self._old_final = b"c=biws,r=old,p=AAAA"
        self._trusting = tls_context(node.certificates / "ca.pem")
        self._foreign = tls_context(node.certificates / "ca.pem")
        self._foreign.load_cert_chain(node.foreign / "client.pem")
        self._hello = login_cases.client_hello(self._trusting)
        self._record = work.produce_frame(TOPIC, 1, 1, 20)
        self.check_service()
        self.descriptors = node.descriptors()

    def close(self) -> None:
        """Close what is half open."""
        while self._open:
            self._open.pop().close()

    # -- one connection --------------------------------------------------------------------------------------------

    def run_case(self) -> None:
        """Make one connection that must not succeed. Raises Broken."""
        self.connections += 1
        kind = self.rng.random()
        try:
            if kind < 0.25:
                self._wrong_handshake()
            elif kind < 0.32:
                self._foreign_client()
            else:
                self._wrong_login(tls=kind > 0.9)
        except TimeoutError:
            raise Broken("no answer and no end") from None
        except (LoginFailure, OSError):  # TLS's errors are errors of sockets
            self.closes += 1

    def _connect(self, port: int) -> socket.socket:
        sock = socket.create_connection((HOST, port), PATIENCE_S)
        self._open.append(sock)
        return sock

    def _leave(self, sock: socket.socket) -> None:
        """Leave it open, abort it, or close it."""
        way = self.rng.random()
        if way < 0.3:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if way < 0.7:
            sock.close()

    def _wrong_handshake(self) -> None:
        port = self.rng.choice((self.node.ports.ssl, self.node.ports.sasl_ssl))
        data = self.rng.choice(list(login_cases.wrong_hellos(self.rng, self._hello)))
        self.case = f"in place of a handshake: {data[:200].hex()}"
        sock = self._connect(port)
        sock.sendall(data)
        self._leave(sock)

    def _foreign_client(self) -> None:
        """A client without an accepted certificate, at the listener that requires one; or bytes within TLS."""
        context = self.rng.choice((self._trusting, self._foreign))
        self.case = "a handshake without an accepted certificate"
        with context.wrap_socket(self._connect(self.node.ports.ssl), server_hostname=HOST) as sock:
            sock.sendall(self._record)
            self._refuse_record(sock)

    def _wrong_login(self, tls: bool) -> None:
        login, steps = login_cases.begin(self.rng, self.node.keys), self.rng.randrange(STEPS)
        wrong = login_cases.wrong_message(self.rng, self.node.keys, self._old_final, login)
        what = f"{login.mechanism}, handshake {login.version}, {'TLS, ' if tls else ''}step {steps}"
        self.case = f"{what}: {wrong[:300].hex()}"
        sock = self._connect(self.node.ports.sasl_ssl if tls else self.node.ports.plain)
        if tls:
            sock = self._trusting.wrap_socket(sock, server_hostname=HOST)
            self._open[-1] = sock
        is_complete = self._take_steps(sock, login, steps)
        self.reached[login.mechanism, login.version, steps, tls] += 1
        sock.sendall(wrong)
        if is_complete or self.rng.random() < 0.2:
            self._leave(sock)
            return
        if wrong and _is_whole(wrong) and self.rng.random() < 0.5:
            receive(sock)  # more bytes would end the connection before the answer
            self.answers += 1
        with contextlib.suppress(OSError):
            sock.sendall(self._record)
            if not _is_whole(wrong):  # the broker waits for the rest; Python's TLS socket would forget its session
                socket.socket.shutdown(sock, socket.SHUT_WR)
        self._refuse_record(sock)

    def _take_steps(self, sock: socket.socket, login: Login, steps: int) -> bool:
        """Take the first steps of a right login. Returns whether it is complete."""
        if steps >= 1:
            ask_versions(sock)
        if steps >= 2:
            sock.sendall(login_cases.handshake(login.mechanism, login.version))
            receive(sock)
        if steps < 3:
            return False
        answer = self._send_token(sock, login, login.first)
        if login.exchange is None or steps < 4:
            return login.exchange is None
        final = login.exchange.send(answer)
        self._send_token(sock, login, final)
        if self.rng.random() < 0.5:
            self._old_final = final
        return True

    @staticmethod
    def _send_token(sock: socket.socket, login: Login, token: bytes) -> bytes:
        sock.sendall(login_cases.with_token(token, login.version))
        frame = receive(sock)
        if login.version == 0:
            return frame
        answer, _ = decode(SaslAuthenticateResponse, 2, memoryview(frame), response_body_pos(36, 2, memoryview(frame)))
        if answer.error_code:
            raise Broken(f"a right token was refused: {answer.error_message}")
        return bytes(answer.auth_bytes)

    def _refuse_record(self, sock: socket.socket) -> None:
        """Read until the end. Raises Broken if the record was accepted."""
        while True:
            frame = receive(sock)
            self.answers += 1
            if frame[:4] == b"\0\0\0\7" and _is_accepted(frame):  # the correlation id of the record
                raise Broken("a record was accepted without a login")

    def end_half_open(self) -> None:
        """Close the oldest connections that are half open."""
        self._open = [sock for sock in self._open if sock.fileno() >= 0]
        while len(self._open) > HALF_OPEN:
            self._open.pop(0).close()

    # -- the broker's health ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the process, its log, memory and descriptors. Raises Broken."""
        if not self.node.alive:
            raise Broken(f"the process has ended\n{self.node.tail()}")
        complaints = self.node.complaints()
        complaints += [line for line in self.node.said().splitlines() if CONTAINED in line]
        if complaints:
            raise Broken("; ".join(complaints[:3]) + "\n" + self.node.tail())
        self.close()
        end = time.monotonic() + PATIENCE_S
        while (now := self.node.descriptors()) > self.descriptors + DESCRIPTORS_MAX:
            if time.monotonic() > end:
                raise Broken(f"{now} descriptors are open, {self.descriptors} at first")
            time.sleep(0.02)
        self.resident = self.node.resident_bytes()
        if self.connections <= WARM or not self.rss:
            self.rss = self.resident
        elif self.resident > self.rss + GROWTH_MAX:
            raise Broken(f"resident memory grew from {self.rss >> 20} to {self.resident >> 20} MiB")

    def check_service(self) -> None:
        """Check that a good client logs in over TLS and produces. Raises Broken."""
        failed: list[object] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": f"{HOST}:{self.node.ports.sasl_ssl}",
                "security.protocol": "sasl_ssl",
                "ssl.ca.location": str(self.node.certificates / "ca.pem"),
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        )
        producer.produce(TOPIC, b"good", on_delivery=lambda error, _: failed.append(error) if error else None)
        left = producer.flush(PATIENCE_S)
        if failed or left:
            raise Broken(f"the good client: {failed or 'no answer'}\n{self.node.tail()}")


def _is_whole(data: bytes) -> bool:
    """Whether these bytes are whole frames."""
    while len(data) >= 4:
        (size,) = struct.unpack_from(">i", data)
        if size < 0:
            return False
        data = data[4 + size :] if len(data) >= 4 + size else b"x"
    return not data


def _is_accepted(frame: bytes) -> bool:
    """Whether this is the answer to a Produce that has succeeded."""
    try:
        answer, _ = decode(ProduceResponse, work.PRODUCE_VERSION, memoryview(frame), 4)
    except MalformedMessage:
        return False  # a refusal in another form
    return any(not row.error_code for topic in answer.responses for row in topic.partition_responses)


def fuzzing(node: Target, seed: int, connections: int | None) -> Iterator[LoginFuzz]:
    """Run cases; yields after each check. Raises Broken."""
    fuzz = LoginFuzz(node, seed)
    try:
        while connections is None or fuzz.connections < connections:
            fuzz.run_case()
            fuzz.end_half_open()
            if fuzz.connections % CHECK_EVERY == 0:
                fuzz.check()
                yield fuzz
            if fuzz.connections % SERVICE_EVERY == 0:
                fuzz.check_service()
        fuzz.check()
        fuzz.check_service()
        yield fuzz
    except Broken as error:
        raise Broken(f"{error}\nconnection {fuzz.connections}: {fuzz.case}") from None
    finally:
        fuzz.close()


def report(fuzz: LoginFuzz, seconds: float) -> str:
    """One line of numbers."""
    return (
        f"{seconds:6.0f} s  {fuzz.connections} connections ({fuzz.connections / max(seconds, 1):.0f} per s), "
        f"{fuzz.closes} closed by the broker, {fuzz.answers} refusals read, 0 process ends, 0 logins, "
        f"memory {(fuzz.resident - fuzz.rss) / 2**20:+.1f} MiB"
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as directory,
        Target(Path(directory)) as node,
        contextlib.suppress(KeyboardInterrupt),
    ):
        began, shown = time.monotonic(), 0.0
        try:
            for fuzz in fuzzing(node, options.seed, options.connections):
                seconds = time.monotonic() - began
                if seconds > shown + 60:
                    shown = seconds
                    print(report(fuzz, seconds), file=sys.stderr, flush=True)
            print(report(fuzz, time.monotonic() - began))
        except Broken as error:
            print(f"\nseed {options.seed}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
