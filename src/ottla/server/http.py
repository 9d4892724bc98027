"""A page or two for monitoring, over HTTP: `/metrics` and `/health`.

Zone: real. GET and HEAD of a fixed set of pages, one request per connection; nothing here changes the broker. Where
`ottla.http.listener` is not set nothing listens.

What is read of the broker is read in a turn of the loop, so that it is never half changed; between two metrics others
have their turns, for with thousands of partitions all of them together take long. Whoever asks is not trusted: a head
is at most HEAD_BYTES long and has to come within WAIT_S, and more than MAX_CLIENTS at once are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from ottla.metrics import Registry
from ottla.seams import Failure, Kind
from ottla.server.os_errors import failure_of

HEAD_BYTES: Final = 8192
WAIT_S: Final = 5.0
MAX_CLIENTS: Final = 32
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Unavailable"}

HEALTH_ROWS: Final = (
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_server_replicamanager_offlinereplicacount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_log_logmanager_offlinelogdirectorycount",
)
"""Metrics that are 0 where all is well."""


class Page(NamedTuple):
    """What is answered."""

    status: int
    content_type: str
    body: str


Pages = Mapping[str, Callable[[], Awaitable[Page]]]
"""Path → page."""


class HttpServer:
    """Serves pages on one address."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pages: Pages) -> None:
        self._loop = loop
        self._pages = pages
        self._clients = 0
        self._server: asyncio.Server | None = None
        self.port = 0
        """The port that is bound."""

    def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. Raises Failure naming the address when it is taken."""
        starting = asyncio.start_server(self._client, host or None, port, limit=HEAD_BYTES, backlog=MAX_CLIENTS)
        try:
            self._server = self._loop.run_until_complete(starting)
        except OSError as error:
            raise failure_of(error, f"ottla.http.listener {host}:{port}") from None
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Listen no more; answers under way are dropped."""
        if self._server is not None:
            self._server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            page, only_head = await self._asked(reader) if self._clients <= MAX_CLIENTS else (_full(), False)
            writer.write(_answer(page, only_head))
            await asyncio.wait_for(writer.drain(), WAIT_S)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # gone, too slow, or no request at all: nothing is owed
        finally:
            self._clients -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _asked(self, reader: asyncio.StreamReader) -> tuple[Page, bool]:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _text(400, "this is not HTTP"), False
        if words[0] not in ("GET", "HEAD"):
            return _text(405, "only GET and HEAD"), False
        make = self._pages.get(words[1].partition("?")[0])
        if make is None:
            return _text(404, f"pages: {' '.join(sorted(self._pages))}"), words[0] == "HEAD"
        return await make(), words[0] == "HEAD"


def _answer(page: Page, only_head: bool) -> bytes:
    body = page.body.encode(errors="replace")
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if only_head else body)


def _text(status: int, text: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", text + "\n")


def _full() -> Page:
    return _text(503, "too many at once")


async def metrics_page(registry: Registry) -> Page:
    """All metrics for Prometheus, a few milliseconds of work at a time."""
    parts = []
    for part in registry.parts():
        parts.append(part)
        await asyncio.sleep(0)
    return Page(200, METRICS_TYPE, "".join(parts))


def health_page(node_id: int, ready: bool, registry: Registry) -> Page:
    """200 when the broker serves clients, else 503; `problems`: metrics that should be 0 and are not."""
    values = {name: registry.total(name) for name in HEALTH_ROWS}
    problems = {name: value for name, value in values.items() if value}
    document = {"status": "ready" if ready else "not ready", "node_id": node_id, "problems": problems}
    return Page(200 if ready else 503, "application/json", json.dumps(document) + "\n")


def add_process_metrics(registry: Registry) -> None:
    """What every Prometheus client library tells of its process, under the same names."""
    page = os.sysconf("SC_PAGE_SIZE")
    started = time.time()
    add = registry.gauge
    registry.counter("process_cpu_seconds_total", "User and system CPU time.", _cpu_seconds)
    add("process_resident_memory_bytes", "Resident memory.", lambda: float(_statm(1) * page))
    add("process_virtual_memory_bytes", "Virtual memory.", lambda: float(_statm(0) * page))
    add("process_open_fds", "Open file descriptors.", _open_descriptors)
    add("process_max_fds", "Most open file descriptors.", lambda: float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    add("process_start_time_seconds", "Start, in seconds since 1970.", lambda: started)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _statm(field: int) -> int:
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
    """`host:port` or `[v6]:port`; an empty host is every interface. Raises Failure."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise Failure(Kind.NOT_DONE, f"ottla.http.listener {text!r} is not host:port")
    return host.strip("[]"), int(port)
