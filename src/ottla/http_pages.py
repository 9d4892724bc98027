"""Pages for monitoring, over HTTP: `/metrics`, `/health`.

Zone: real. GET and HEAD of a fixed set of pages, one request per connection; a request changes nothing. Brokers and
pipelines serve their pages with it.

State is read in turns of the loop, so that it is never half changed. Between two metrics other turns may
run, because with thousands of partitions all metrics together take long. Clients are not trusted: a head is at most
HEAD_BYTES long and has to come within WAIT_S, the answer has to be read within ANSWER_S more, and more than MAX_CLIENTS
at once are refused; a connection counts until it is closed. Clients that request metrics while they are gathered get
the same page. With credentials in the settings a request without them gets status 401, whatever it requests.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
import resource
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, NamedTuple

from ottla.metrics import Registry

log = logging.getLogger(__name__)

HEAD_BYTES: Final = 8192
WAIT_S: Final = 5.0
ANSWER_S: Final = 10.0
"""Time to make a page and for the client to read it: Prometheus' default time-out."""
_ACCEPT_ROUNDS: Final = 10
"""Rounds of the loop from the acceptance of a connection to the first step of its task are fewer."""
LINGER_S: Final = 0.5
PART_BYTES: Final = 64 * 1024
"""Most bytes of a page that are copied for one client at a time."""
MAX_CLIENTS: Final = 32
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_AUTHORIZATION: Final = re.compile(rb"\r\nauthorization:[ \t]*(basic|bearer) +([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)
_CHALLENGES: Final = 'WWW-Authenticate: Basic realm="ottla"\r\nWWW-Authenticate: Bearer\r\n'
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Error",
    503: "Unavailable",
}


class Page(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    body: bytes


Pages = Mapping[str, Callable[[], Awaitable[Page]]]
"""Path → page."""


class Access:
    """Who may read the pages: every client, or those that send a user and password, or a token."""

    __slots__ = ("_accepted",)

    def __init__(self, basic: str | None = None, bearer: str | None = None) -> None:
        """basic: user:password. bearer: a token."""
        self._accepted: list[bytes] = []
        if basic:
            self._accepted.append(_digest(b"basic " + base64.b64encode(basic.encode())))
        if bearer:
            self._accepted.append(_digest(b"bearer " + bearer.encode()))

    def is_allowed(self, head: bytes) -> bool:
        """Whether the head of a request has accepted credentials. Compares in constant time."""
        if not self._accepted:
            return True
        match = _AUTHORIZATION.search(head)
        given = _digest(match[1].lower() + b" " + match[2] if match else b"")
        return any([hmac.compare_digest(given, accepted) for accepted in self._accepted])  # noqa: C419 - all of them


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


class HttpServer:
    """Serves pages on one address."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pages: Pages,
        wait_s: float = WAIT_S,
        answer_s: float = ANSWER_S,
        access: Access | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """wait_s, answer_s: time for the head of a request to come, and for a client to read the answer.

        tls: returns the context for a new connection; None: the pages are served without TLS.
        """
        self._loop = loop
        self._wait_s = wait_s
        self._answer_s = answer_s
        self._pages = pages
        self._access = access or Access()
        self._tls = tls
        self.clients = 0
        """Connections that are not closed."""
        self._server: asyncio.Server | None = None
        self.port = 0
        """The port that is bound."""

    def start_listening(self, host: str, port: int) -> None:
        """Listen; port 0: a free one. Raises OSError when the address is taken."""
        starting = asyncio.start_server(self._on_client, host or None, port, limit=HEAD_BYTES, backlog=MAX_CLIENTS)
        self._server = self._loop.run_until_complete(starting)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """Stop listening; answers under way are dropped."""
        if self._server is not None:
            self._server.close()

    async def end_clients(self) -> None:
        """Stop listening, cancel all other tasks of the loop, and wait until the clients' sockets are closed."""
        # A connection that was just accepted is served some rounds later. Until then nothing would close its socket,
        # and asyncio cannot serve it any more when the server is closed.
        if self._server is not None:
            for sock in self._server.sockets:
                self._loop.remove_reader(sock.fileno())
        for _ in range(_ACCEPT_ROUNDS):
            await asyncio.sleep(0)
        self.stop_listening()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # A transport that was aborted closes its socket in the next round.
            await asyncio.sleep(0)

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients += 1
        # Above MAX_CLIENTS a client gets status 503; above twice as many it gets no answer, which would cost memory.
        if self.clients > 2 * MAX_CLIENTS:
            self.clients -= 1
            writer.transport.abort()
            return
        try:
            if self._tls is not None:
                # Nothing may be awaited before this call: the reader would take the first bytes of the handshake.
                await writer.start_tls(self._tls(), ssl_handshake_timeout=self._wait_s)
            writer.transport.set_write_buffer_limits(0)  # so that `drain` waits until the kernel has taken all bytes
            await asyncio.wait_for(self._serve_client(reader, writer), self._wait_s + self._answer_s)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has gone, is too slow, or sent no request: it gets no answer
        except asyncio.CancelledError:
            pass  # `end_clients` has done it; asyncio would log a task of a client that ends as cancelled
        finally:
            self.clients -= 1
            writer.transport.abort()  # all bytes were sent, or the client is too slow: release the memory now

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        page, only_head = await self._read_request(reader) if self.clients <= MAX_CLIENTS else (_busy_page(), False)
        for part in _response_parts(page, only_head):
            writer.write(part)
            await writer.drain()
        if not writer.can_write_eof():  # under TLS: announce the end, and wait until the client has read it
            writer.close()
            await writer.wait_closed()
            return
        writer.write_eof()
        # Read what the client still sends: closing a socket with unread bytes would reset it and lose the answer.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(HEAD_BYTES), LINGER_S)

    async def _read_request(self, reader: asyncio.StreamReader) -> tuple[Page, bool]:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._wait_s)
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _text_page(400, "this is not HTTP"), False
        if words[0] not in ("GET", "HEAD"):
            return _text_page(405, "only GET and HEAD"), False
        if not self._access.is_allowed(head):
            return _text_page(401, "the request has no accepted credentials"), words[0] == "HEAD"
        make = self._pages.get(words[1].partition("?")[0])
        if make is None:
            return _text_page(404, f"pages: {' '.join(sorted(self._pages))}"), words[0] == "HEAD"
        return await make(), words[0] == "HEAD"


def _response_parts(page: Page, only_head: bool) -> Iterator[bytes | memoryview]:
    """The head and the body in parts; all clients that get the page share the body."""
    body = b"" if only_head else page.body
    challenges = _CHALLENGES if page.status == 401 else ""
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n{challenges}"
        f"Content-Length: {len(page.body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    yield head.encode() + body[:PART_BYTES]
    for start in range(PART_BYTES, len(body), PART_BYTES):
        yield memoryview(body)[start : start + PART_BYTES]


def _text_page(status: int, text: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", f"{text}\n".encode(errors="replace"))


def _busy_page() -> Page:
    return _text_page(503, "too many at once")


class SharedPage:
    """A page that is made once for all clients that request it meanwhile."""

    def __init__(self, make: Callable[[], Awaitable[Page]]) -> None:
        self._make = make
        self._making: asyncio.Task[Page] | None = None

    async def __call__(self) -> Page:
        """The page. A client that leaves does not cancel it for the others."""
        if self._making is None or self._making.done():
            self._making = asyncio.ensure_future(self._make_page())
        return await asyncio.shield(self._making)

    async def _make_page(self) -> Page:
        try:
            return await self._make()
        except Exception:
            log.exception("cannot make a page for monitoring: answering with status 500")
            return _text_page(500, "the page cannot be made; see the log for the reason")


def json_page(status: int, document: Mapping[str, object]) -> Page:
    """A page with a JSON document."""
    return Page(status, "application/json", f"{json.dumps(document)}\n".encode())


class PageThread:
    """Serves pages from a thread of its own, for programs without an event loop."""

    def __init__(self, pages: Pages, address: str, access: Access | None = None) -> None:
        """address: host:port; port 0: a free one. Raises ValueError for other text, OSError when it is taken."""
        host, port = parse_address(address)
        self._loop = asyncio.new_event_loop()
        self._server = HttpServer(self._loop, pages, access=access)
        try:
            self._server.start_listening(host, port)
        except OSError:
            self._loop.close()
            raise
        self.port = self._server.port
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"pages-{self.port}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Serve no more; answers under way are dropped."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._server.end_clients())
        self._loop.close()


async def metrics_page(registry: Registry) -> Page:
    """All metrics for Prometheus, gathered a few milliseconds at a time."""
    parts = []
    for part in registry.text_parts():
        parts.append(part)
        await asyncio.sleep(0)
    return Page(200, METRICS_TYPE, "".join(parts).encode(errors="replace"))


def add_process_metrics(registry: Registry) -> None:
    """Declare the metrics of the process that every client library of Prometheus has, under the same names."""
    page = os.sysconf("SC_PAGE_SIZE")
    started = time.time()
    add = registry.add_gauge
    registry.add_counter("process_cpu_seconds_total", "User and system CPU time.", _cpu_seconds)
    add("process_resident_memory_bytes", "Resident memory.", lambda: float(_read_statm(1) * page))
    add("process_virtual_memory_bytes", "Virtual memory.", lambda: float(_read_statm(0) * page))
    add("process_open_fds", "Open file descriptors.", _open_descriptors)
    add("process_max_fds", "Most open file descriptors.", lambda: float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    add("process_start_time_seconds", "Start, in seconds since 1970.", lambda: started)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _read_statm(field: int) -> int:
    """A field of /proc/self/statm, in pages; 0 where there is none (macOS)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[field])
    except OSError:
        return 0


def _open_descriptors() -> float:
    for directory in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return float(len(os.listdir(directory)))
    return 0.0


def parse_address(text: str) -> tuple[str, int]:
    """Parse `host:port` or `[v6]:port`; an empty host is every interface. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)
