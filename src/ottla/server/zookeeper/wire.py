"""A connection to ZooKeeper that records when the last answered request was sent.

Zone: real. A socket for kazoo, passed through the interface of its handlers. kazoo itself counts every request as a
sign of life and checks for a missing answer only when it is idle, so a busy client never notices a dead server. Here an
answer counts from the time at which its request was sent: the server renewed the session then or later. An answer that
waited in a buffer while this process was stopped proves nothing newer.
"""

from __future__ import annotations

import socket
from collections import deque
from struct import Struct
from typing import Final

from ottla.server.loop.poller import steady_ns

_INT: Final = Struct(">i")
_HEAD: Final = 12
"""Bytes of a message that are parsed: its length, the xid (or the protocol), the time-out of a Connect answer."""
_WATCH_XID: Final = -1


class ZooKeeperConnection:
    """One TCP connection. kazoo's thread sends and receives; `heard_ns` and `timeout_ms` are read from the loop."""

    def __init__(self, sock: socket.socket) -> None:
        self.born_ns = steady_ns()
        self.heard_ns = 0
        """When the last answered request was sent (`steady_ns`); 0: none was answered."""
        self.timeout_ms = 0
        """The session time-out that the server granted; 0: not yet."""
        self._socket = sock
        self._sent: deque[int] = deque()
        self._unsent = 0
        self._head = bytearray()
        self._left = 0

    # -- called by kazoo -------------------------------------------------------------------------------------------

    def send(self, data: memoryview) -> int:
        """Send as much as the socket takes; `data` is a whole message with its length, or the rest of one."""
        begins = self._unsent == 0
        now = steady_ns()
        sent = self._socket.send(data)
        if begins:
            self._sent.append(now)
        self._unsent = len(data) - sent
        return sent

    def recv(self, size: int) -> bytes:
        """Receive; no bytes mean that the server has closed."""
        data = self._socket.recv(size)
        self._scan_received(data)
        return data

    def fileno(self) -> int:
        """See `socket`."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        """See `socket`."""
        self._socket.setblocking(flag)

    def getpeername(self) -> object:
        """See `socket`."""
        return self._socket.getpeername()

    def close(self) -> None:
        """See `socket`."""
        self._socket.close()

    # -- called by the loop ----------------------------------------------------------------------------------------

    def cut_connection(self) -> None:
        """Shut the socket down, which makes kazoo reconnect; does nothing if it is closed already."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    # -- messages --------------------------------------------------------------------------------------------------

    def _scan_received(self, data: bytes) -> None:
        pos = 0
        while pos < len(data):
            if self._left == 0:
                pos += self._take_reply(data, pos, 4)
                if len(self._head) == 4:
                    self._left = max(0, _INT.unpack(self._head)[0])
                continue
            size = min(len(data) - pos, self._left)
            self._take_reply(data, pos, _HEAD)
            pos += size
            self._left -= size
            if self._left == 0:
                self._on_message()
                self._head.clear()

    def _take_reply(self, data: bytes, pos: int, upto: int) -> int:
        part = data[pos : pos + max(0, upto - len(self._head))]
        self._head += part
        return len(part)

    def _on_message(self) -> None:
        # 1. The first message answers Connect and has the granted time-out.
        if self.timeout_ms == 0:
            if len(self._head) == _HEAD:
                self.timeout_ms = _INT.unpack_from(self._head, 8)[0]
        # 2. The notice of a watch answers no request.
        elif len(self._head) >= 8 and _INT.unpack_from(self._head, 4)[0] == _WATCH_XID:
            return
        # 3. The server answers in the order of the requests.
        if self._sent:
            self.heard_ns = self._sent.popleft()
