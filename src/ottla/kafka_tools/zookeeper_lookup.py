"""The brokers that are registered in ZooKeeper, for the old option --zookeeper.

Zone: real. Speaks ZooKeeper's protocol on a socket of its own: a session reads two kinds of nodes and ends. So the
tools need neither a package for ZooKeeper nor anything of the broker.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from ottla.kafka_tools.options import ToolError

WAIT_S: Final = 30.0
"""Time for the whole lookup, as Kafka's tools wait for a session."""
_SERVER_S: Final = 10.0
"""Time for one server: the port may be that of another program, which never answers."""
_SESSION_MS: Final = 6_000
_LARGEST_ANSWER: Final = 4 << 20
"""An answer in bytes; ZooKeeper's own limit is 1 MiB."""
_MOST_BROKERS: Final = 3
"""Brokers to connect to first. They name all others."""
_IDS: Final = "/brokers/ids"
_CLOSE, _GET_DATA, _GET_CHILDREN = -11, 4, 8
_NO_NODE, _NO_AUTH = -101, -102
_REFUSED: Final = {
    _NO_NODE: "it does not exist. Check the path after host:port, and that brokers run",
    _NO_AUTH: "ZooKeeper wants credentials for it, which this tool does not have",
}
_ADVICE: Final = "Or use --bootstrap-server HOST:PORT with the address of a broker in place of --zookeeper."


def find_brokers(connect: str, protocol: str = "PLAINTEXT", wait_s: float = WAIT_S) -> str:
    """Addresses of registered brokers, `host:port,…`.

    connect: `host:port,…/chroot`. protocol: the security protocol of the listeners. Raises ToolError.
    """
    servers, chroot = _parse_connect(connect)
    deadline = time.monotonic() + wait_s
    failures: list[str] = []
    for server in servers:
        try:
            with _Session(server, min(deadline, time.monotonic() + _SERVER_S)) as session:
                return _registered_addresses(session, chroot, protocol.upper())
        except OSError as error:
            failures.append(f"{server}: {error}")
    raise ToolError(
        f"Unable to connect to zookeeper server '{connect}': {'; '.join(failures)}. Start ZooKeeper, or correct the "
        f"address. {_ADVICE}",
        "org.I0Itec.zkclient.exception.ZkTimeoutException",
    )


def _parse_connect(connect: str) -> tuple[tuple[str, ...], str]:
    from ottla.config.broker import parse_zookeeper
    from ottla.config.rows import ConfigError

    try:
        return parse_zookeeper(connect)
    except ConfigError as error:
        raise ToolError(f"--zookeeper has the form host:port,host:port/path: {error}") from None


def _registered_addresses(session: _Session, chroot: str, protocol: str) -> str:
    folder = f"{chroot}{_IDS}"
    ids = sorted(int(name) for name in session.read_children(folder) if name.isdecimal())
    if not ids:
        raise ToolError(f"No broker is registered in ZooKeeper at {folder}: start the brokers. {_ADVICE}")
    found: dict[str, list[str]] = {}
    for broker in ids[:_MOST_BROKERS]:
        for name, address in _listeners(f"{folder}/{broker}", session.read_node(f"{folder}/{broker}")):
            found.setdefault(name, []).append(address)
    if protocol not in found:
        raise ToolError(
            f"The brokers in ZooKeeper at {folder} have no listener with the protocol {protocol}, only "
            f"{', '.join(sorted(found)) or 'none'}: set security.protocol in the file of --command-config. {_ADVICE}"
        )
    return ",".join(found[protocol])


def _listeners(path: str, content: bytes) -> Iterator[tuple[str, str]]:
    """(security protocol, `host:port`) of each listener in a registration. Raises ToolError."""
    try:
        node = json.loads(content)
        protocols: dict[str, str] = node.get("listener_security_protocol_map") or {}
        for endpoint in node.get("endpoints") or (f"PLAINTEXT://{node['host']}:{node['port']}",):
            listener, _, address = endpoint.partition("://")
            yield protocols.get(listener, listener).upper(), address
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ToolError(f"{path} in ZooKeeper is not the registration of a broker: {error!r}. {_ADVICE}") from None


class _Session:
    """A session with one server. Use as a context manager. Raises OSError when the connection is lost or time is up."""

    def __init__(self, server: str, deadline: float) -> None:
        host, _, port = server.rpartition(":")
        self._deadline = deadline
        self._requests = 0
        self._wire = socket.create_connection((host.strip("[]"), int(port)), self._left())
        try:
            # Version, last transaction seen, session time-out, no session yet, an empty password.
            self._send_message(struct.pack(">iqiqi16x", 0, 0, _SESSION_MS, 0, 16))
            self._receive()
        except OSError:
            self._wire.close()
            raise

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Without it ZooKeeper keeps the session until its time-out. A server that is gone has no session to end.
        try:
            self._send_message(struct.pack(">ii", self._requests + 1, _CLOSE))
        except OSError:
            pass
        finally:
            self._wire.close()

    def read_children(self, path: str) -> list[str]:
        """The names of a node's children. Raises ToolError, OSError."""
        answer, at, names = self._ask(_GET_CHILDREN, path), 4, []
        # The number of names comes first; an answer that has fewer of them is damaged.
        for _ in range(int.from_bytes(answer[:4], "big", signed=True)):
            name, at = _read_bytes(answer, at)
            names.append(name.decode("utf-8", "replace"))
        return names

    def read_node(self, path: str) -> bytes:
        """The content of a node. Raises ToolError, OSError."""
        return _read_bytes(self._ask(_GET_DATA, path), 0)[0]

    def _ask(self, operation: int, path: str) -> bytes:
        name = path.encode()
        self._requests += 1
        self._send_message(struct.pack(f">iii{len(name)}s?", self._requests, operation, len(name), name, False))
        answer = self._receive()
        if len(answer) < _HEADER.size:
            raise _damaged_answer()
        _, _, refusal = _HEADER.unpack_from(answer)
        if refusal:
            reason = _REFUSED.get(refusal, f"ZooKeeper answers with its error {refusal}")
            raise ToolError(f"{path} in ZooKeeper cannot be read: {reason}. {_ADVICE}")
        return answer[_HEADER.size :]

    def _send_message(self, message: bytes) -> None:
        self._wire.settimeout(self._left())
        self._wire.sendall(struct.pack(">i", len(message)) + message)

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        if not 0 <= size <= _LARGEST_ANSWER:
            raise ConnectionError(f"an answer of {size} bytes: this is not a ZooKeeper server")
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            self._wire.settimeout(self._left())
            part = self._wire.recv(min(size - len(content), 1 << 16))
            if not part:
                raise ConnectionError("the server closed the connection")
            content += part
        return bytes(content)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        return left


_HEADER: Final = struct.Struct(">iqi")
"""Number of the request, transaction, error."""


def _read_bytes(answer: bytes, at: int) -> tuple[bytes, int]:
    """Bytes after their length, which is -1 for null, and the position after them. Raises ConnectionError."""
    if at + 4 > len(answer):
        raise _damaged_answer()
    (size,) = struct.unpack_from(">i", answer, at)
    end = at + 4 + max(size, 0)
    if end > len(answer):
        raise _damaged_answer()
    return answer[at + 4 : end], end


def _damaged_answer() -> ConnectionError:
    return ConnectionError("an answer ends too early: this is not a ZooKeeper server")
