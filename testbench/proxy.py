"""A TCP proxy that breaks connections, damages bytes and delays them: network faults without root.

Zone: real. Delayed bytes are not lost: as with TCP itself, they arrive when the fault is over.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

_CHUNK: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER that makes a close a reset."""


class _Pipe:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, target: socket.socket, forward: bool) -> None:
        self.source = source
        self.target = target
        self.forward = forward


class Proxy:
    """Listens on 127.0.0.1 and passes everything on to one address, on a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._pipes: list[_Pipe] = []
        self._held = {True: False, False: False}
        self._refusing = False
        self._damaged = b""
        self._todo: list[tuple[Callable[[], None], threading.Event]] = []
        self._running = True
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """`host:port` to connect to."""
        return f"127.0.0.1:{self.port}"

    def hold(self, forward: bool = True, back: bool = True) -> None:
        """Hold bytes back in these directions."""
        self._do(lambda: self._set_held(self._held[True] or forward, self._held[False] or back))

    def release(self) -> None:
        """Forward again, first the bytes that were held back."""
        self._do(lambda: self._set_held(False, False))

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        self._do(self._close_all)

    def refuse(self, refusing: bool = True) -> None:
        """Whether new connections are reset at once."""
        self._do(lambda: setattr(self, "_refusing", refusing))

    def damage(self, what: bytes) -> None:
        """Replace the next occurrence of these bytes on their way to the target with zeros, once.

        Only within the bytes of one system call: use short bytes, and no other traffic.
        """
        self._do(lambda: setattr(self, "_damaged", what))

    def stop(self) -> None:
        """End, with all connections."""
        self._do(self._end)
        self._thread.join()
        self._wake.close()
        self._woken.close()

    # -- on the thread ---------------------------------------------------------------------------------------------

    def _do(self, action: Callable[[], None]) -> None:
        done = threading.Event()
        self._todo.append((action, done))
        self._wake.send(b"x")
        done.wait()

    def _run(self) -> None:
        while self._running:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._woken.recv(1)
                    action, done = self._todo.pop(0)
                    action()
                    done.set()
                    break  # sockets that were selected before may be closed now
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Pipe):
                    self._move(key.data)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            if self._refusing:
                raise ConnectionRefusedError
            server = socket.create_connection(self._target, 5)
        except OSError:
            _reset(client)
            return
        self._pipes += [_Pipe(client, server, True), _Pipe(server, client, False)]
        self._set_held(self._held[True], self._held[False])

    def _set_held(self, forward: bool, back: bool) -> None:
        self._held = {True: forward, False: back}
        for pipe in self._pipes:
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe.source)
            if not self._held[pipe.forward]:
                self._selector.register(pipe.source, selectors.EVENT_READ, pipe)

    def _move(self, pipe: _Pipe) -> None:
        try:
            data = pipe.source.recv(_CHUNK)
            if pipe.forward and self._damaged and self._damaged in data:
                data = data.replace(self._damaged, bytes(len(self._damaged)))
                self._damaged = b""
            if data:
                pipe.target.sendall(data)
                return
        except OSError:
            data = b""
        self._close(pipe)

    def _close(self, pipe: _Pipe) -> None:
        for one in [one for one in self._pipes if one.source in (pipe.source, pipe.target)]:
            self._pipes.remove(one)
            with contextlib.suppress(KeyError):
                self._selector.unregister(one.source)
        _reset(pipe.source)
        _reset(pipe.target)

    def _close_all(self) -> None:
        while self._pipes:
            self._close(self._pipes[0])

    def _end(self) -> None:
        self._running = False
        self._close_all()
        self._selector.close()
        self._listener.close()


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()
