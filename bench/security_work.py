"""The workloads of bench/security.py. Every function returns plain numbers."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from testbench.apache_kafka.packages import BenchError
from testbench.ports import HOST, free_port

from bench import work
from bench.hostile import Victim
from bench.logins import ask_versions, connect, tls_context
from bench.peers import Cpu, rss_mib
from bench.secure_peers import OTTLA, PASSWORD, USER, SecureOttla, SecurePeer
from ottla.acls import AclEntry, Operation, Permission, ResourcePattern, ResourceType
from ottla.replication.leaders import NoLeaders
from ottla.replication.produce.produce_rights import ProduceRights
from ottla.seams import Instant
from ottla.security.audit_log import AuditLog
from ottla.security.authorization.authorizer import Authorizer
from ottla.security.authorization.connection_rights import AllRights

CLIENTS = 4
"""Threads that shake hands; OpenSSL lets the others run meanwhile."""
ROUNDS, CALLS = 200, 500
FLOODS = 3
"""Processes that log in. They run while a processor is idle (SCHED_IDLE), as if they were on other machines: a process
that is only `nice` keeps its processor for milliseconds when the broker wants it."""


# -- bytes -------------------------------------------------------------------------------------------------------------


def client_settings(authority: Path) -> dict[str, object]:
    """The settings of librdkafka for TLS."""
    return {"security.protocol": "ssl", "ssl.ca.location": str(authority)}


def produce(peer: SecurePeer, topic: str, authority: Path, total_bytes: int) -> float:
    """CPU seconds of the broker per GB that librdkafka produces over TLS."""
    return work.cpu_of_produce(
        f"{HOST}:{peer.tls_port}",
        (peer.pid,),
        topic,
        size=1024,
        batch=1_000_000,
        total_bytes=total_bytes,
        acks="1",
        settings=client_settings(authority),
    )


def consume(peer: SecurePeer, topic: str, total_bytes: int, authority: Path | None) -> float:
    """CPU seconds of the broker per GB that librdkafka consumes; authority None: without TLS."""
    if authority is None:
        return work.client_fetch(peer, topic, 1024, total_bytes, work.DEFAULTS)
    settings = {**client_settings(authority), "bootstrap.servers": f"{HOST}:{peer.tls_port}"}
    return work.client_fetch(peer, topic, 1024, total_bytes, settings)


# -- connections -------------------------------------------------------------------------------------------------------


def handshakes(peer: SecurePeer, authority: Path, count: int) -> tuple[float, float]:
    """CPU ms of the broker per handshake, and handshakes a second; each with one ApiVersions, without sessions."""
    context = tls_context(authority)

    def shake() -> None:
        for _ in range(count // CLIENTS):
            with connect(peer.tls_port, context) as sock:
                ask_versions(sock)

    threads = [threading.Thread(target=shake) for _ in range(CLIENTS)]
    began = time.monotonic()
    with Cpu(peer.pid) as cpu:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    done = count // CLIENTS * CLIENTS
    return cpu.seconds / done * 1e3, done / (time.monotonic() - began)


def idle_memory(peer: SecureOttla, authority: Path | None, count: int) -> float:
    """KiB of resident memory per idle connection; authority None: without TLS."""
    context = None if authority is None else tls_context(authority)
    port = peer.port if authority is None else peer.tls_port
    with ExitStack() as stack:
        before = rss_mib(peer.pid)
        for _ in range(count):
            ask_versions(stack.enter_context(connect(port, context)))
        return (rss_mib(peer.pid) - before) * 1024 / count


def logins_beside(peer: SecureOttla, authority: Path, seconds: float, rate: float) -> tuple[float, float]:
    """Logins a second, and how many times longer the p99 of another's small produces is meanwhile than alone."""
    victim = Victim(peer.port)
    time.sleep(seconds)
    alone = victim.figures()
    program = Path(__file__).with_name("logins.py")
    each = [str(peer.login_port), str(authority), USER, PASSWORD, str(seconds), str(rate / FLOODS)]
    command = ["chrt", "--idle", "0", sys.executable, str(program), *each]
    floods = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(FLOODS)]
    time.sleep(1)  # their start is not measured
    victim = Victim(peer.port)
    made = 0
    for flood in floods:
        said, _ = flood.communicate()
        if flood.returncode:
            raise BenchError("a login has failed")
        made += int(said)
    return made / seconds, victim.figures().p99 / alone.p99


# -- decisions ---------------------------------------------------------------------------------------------------------


class _Writer:
    principal, host, listener = "User:bench", "10.0.0.1", "SASL_SSL"


class _StillClock:
    """The clock of an audit log that gets no line."""

    def now(self) -> Instant:
        return Instant(0, 0)


def decision_us() -> float:
    """Time of a cached decision, the least of many rounds."""
    rights = _rights().rights_of(_Writer())
    assert rights is not None
    write, topic = Operation.WRITE, ResourceType.TOPIC
    return _least_us(lambda: rights.is_allowed(write, topic, "t0"), lambda: None)


def produce_us(partitions: int) -> float:
    """What an authorizer adds to the handling of a Produce, per partition, the least of many rounds in pairs."""
    checks, peer = ProduceRights(_rights().rights_of, {}, NoLeaders()), _Writer()
    items = [(f"t{number}", 0, memoryview(bytes(200))) for number in range(partitions)]
    without: ProduceRights | None = None

    def checked() -> None:
        if checks is not None:
            checks.refuse_denied(peer, None, items)

    def unchecked() -> None:
        if without is not None:
            without.refuse_denied(peer, None, items)

    return _least_us(checked, unchecked) / partitions


def _rights() -> AllRights:
    authorizer = Authorizer()
    for number in range(1000):
        entry = AclEntry("User:bench", "*", Operation.WRITE, Permission.ALLOW)
        authorizer.replace_acls(ResourcePattern(ResourceType.TOPIC, f"t{number}"), [entry])
    authorizer.mark_loaded()
    return AllRights(authorizer, AuditLog(_StillClock()), None)


def _least_us(act: Callable[[], object], base: Callable[[], object]) -> float:
    def once(function: Callable[[], object]) -> float:
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            function()
        return (time.perf_counter_ns() - began) / CALLS / 1000

    gc.disable()
    try:
        pairs = [(once(act), once(base)) for _ in range(ROUNDS)]
    finally:
        gc.enable()
    return min(took for took, _ in pairs) - min(took for _, took in pairs)


# -- start -------------------------------------------------------------------------------------------------------------


def secure_start(directory: Path) -> float:
    """Seconds from the command `ottla up --secure` until requests are answered; then it is stopped."""
    directory.mkdir(parents=True, exist_ok=True)
    ready, port = directory / "ready", free_port()
    command = [OTTLA, "up", "--secure", "--data", str(directory / "data"), "--port", str(port)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    began = time.monotonic()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=log, stderr=log, env=environment)
        while not (ready.exists() and ready.read_text().strip()):
            if process.poll() is not None or time.monotonic() > began + 60:
                raise BenchError(f"ottla up --secure did not become ready; see {directory / 'log'}")
            time.sleep(0.002)
        took = time.monotonic() - began
        process.terminate()
        process.wait(30)
    return took
