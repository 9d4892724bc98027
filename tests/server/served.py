"""The embedded store with its server on a thread, and a client on a plain socket.

Zone: real.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable

from kazoo.client import KazooClient

from ottla.server.zookeeper.jute import write_fields
from ottla.server.zookeeper.records import (
    encode_request,
)
from ottla.server.zookeeper.znode_client import ZnodeLimits
from ottla.server.zookeeper.znode_server import ZnodeServer

HOST = "127.0.0.1"


class Served:
    """A store with its server on a thread; calls to the server run on that thread."""

    def __init__(self, directory: str, limits: ZnodeLimits) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = ZnodeServer(self.loop, directory, limits)
        self.server.load_store()
        self.loop.run_until_complete(self.server.start_listening(HOST, 0))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.clients: list[KazooClient] = []
        self.sockets: list[Raw] = []

    def ask(self, question: Callable):
        """Run a function on the server's thread; returns its result."""

        async def send_response():
            return question(self.server)

        return asyncio.run_coroutine_threadsafe(send_response(), self.loop).result(180)

    def kazoo(self, **options) -> KazooClient:
        client = KazooClient(f"{HOST}:{self.server.port}", **{"timeout": 10.0, **options})
        self.clients.append(client)
        client.start(10)
        return client

    def raw(self) -> Raw:
        raw = Raw(self.server.port)
        self.sockets.append(raw)
        return raw

    def word(self, word: bytes) -> str:
        with socket.create_connection((HOST, self.server.port), 10) as sock:
            sock.sendall(word)
            return b"".join(iter(lambda: sock.recv(65536), b"")).decode()

    def stop(self) -> None:
        for client in self.clients:
            client.stop()
            client.close()
        for raw in self.sockets:
            raw.close()
        try:
            asyncio.run_coroutine_threadsafe(self.server.stop_serving(), self.loop).result(180)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()


class FramedSocket:
    """A client on a plain socket, whose messages have their length before them."""

    def __init__(self, host: str, port: int) -> None:
        self.sock = socket.create_connection((host, port), 10)

    def send(self, message: bytes) -> None:
        self.sock.sendall(struct.pack(">i", len(message)) + message)

    def receive(self) -> bytes | None:
        """One message, or None at the end."""
        head = self._exactly(4)
        return None if head is None else self._exactly(struct.unpack(">i", head)[0])

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                more = self.sock.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data


class Raw(FramedSocket):
    """A client of the store."""

    def __init__(self, port: int) -> None:
        super().__init__(HOST, port)
        self.xid = 0
        self.session = (0, bytes(16))

    def close(self) -> None:
        self.sock.close()

    def connect(self, timeout_ms: int = 10_000, session: int = 0, password: bytes = bytes(16)) -> tuple:
        """(time-out, session, password) as granted."""
        self.send(write_fields("iqiqdb", (0, 0, timeout_ms, session, password, False)))
        answer = self.receive()
        _, granted, session = struct.unpack_from(">iiq", answer)
        self.session = (session, answer[20:36])
        return granted, *self.session

    def ask(self, op: int, record, xid: int | None = None) -> tuple[int, bytes]:
        """Error and record of the answer; notices on the way are dropped."""
        self.xid += 1
        self.send(encode_request(self.xid if xid is None else xid, op, record))
        while True:
            answer = self.receive()
            assert answer is not None, "the connection was closed"
            got, _, error = struct.unpack_from(">iqi", answer)
            if got != -1:
                return error, answer[16:]

    def notice(self) -> tuple[int, str]:
        """Kind and path of the next message, which is the notice of a watch."""
        message = self.receive()
        xid, _, _, kind, _, size = struct.unpack_from(">iqiiii", message)
        assert xid == -1
        return kind, message[28 : 28 + size].decode()

    @property
    def ended(self) -> bool:
        return self.receive() is None
