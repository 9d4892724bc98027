"""The pages for monitoring, requested over HTTP by the standard library's client."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import json
import socket

import pytest

from ottla.config.broker import BrokerConfig
from ottla.http_pages import (
    HEAD_BYTES,
    MAX_CLIENTS,
    HttpServer,
    Page,
    PageThread,
    SharedPage,
    metrics_page,
    parse_address,
)
from ottla.metrics import Registry
from ottla.seams import Failure
from ottla.server.connections.monitoring import listen_for_pages
from ottla.server.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def port():
    with EmbeddedBroker(config={"ottla.http.listener": "127.0.0.1:0"}) as broker:
        yield broker.http_port


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def test_metrics_for_prometheus(port: int) -> None:
    status, kind, body = ask(port, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    rows = dict(line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#"))
    assert float(rows["process_resident_memory_bytes"]) > 1 << 20
    assert float(rows["process_open_fds"]) > 3
    assert rows["kafka_log_logmanager_offlinelogdirectorycount"] == "0"
    assert not any(name.startswith("jvm_") for name in rows)
    assert ask(port, "/metrics?name[]=up")[0] == 200


def test_others_have_their_turns_between_two_metrics() -> None:
    """With thousands of partitions all rows at once would delay every request."""
    registry, seen = Registry(), []
    for name in ("a", "b", "c"):
        registry.add_gauge(name, "Read.", lambda: seen.append("read") or 1.0)

    async def other() -> None:
        while True:
            seen.append("other")
            await asyncio.sleep(0)

    async def both() -> bytes:
        task = asyncio.get_running_loop().create_task(other())
        page = await metrics_page(registry)
        task.cancel()
        return page.body

    assert asyncio.run(both()) == registry.render_text().encode()
    assert seen[:6] == ["read", "other"] * 3


def test_health(port: int) -> None:
    status, kind, body = ask(port, "/health")
    assert (status, kind) == (200, "application/json")
    assert json.loads(body) == {"status": "ready", "node_id": 1, "problems": {}}
    assert ask(port, "/health", "HEAD")[::2] == (200, "")


def test_other_requests_are_refused(port: int) -> None:
    assert ask(port, "/")[0] == 404
    assert "/health /metrics" in ask(port, "/nothing")[2]
    assert ask(port, "/metrics", "POST")[0] == 405


@pytest.mark.parametrize("said", [b"\r\n\r\n", b"GET /metrics\r\n\r\n", b"\x00" * 100 + b"\r\n\r\n"])
def test_what_is_no_http_gets_an_error(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=180) as client:
        client.sendall(said)
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_head_without_end_is_cut_off(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=180) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n" + b"x" * HEAD_BYTES * 4)
        with contextlib.suppress(ConnectionResetError):  # closed before it read these bytes
            assert client.recv(100) == b""


def test_many_at_once_are_bounded_and_forgotten(port: int) -> None:
    idle = [socket.create_connection(("127.0.0.1", port), timeout=180) for _ in range(MAX_CLIENTS)]
    statuses = {ask(port, "/health")[0] for _ in range(3)}
    assert statuses <= {200, 503}
    for client in idle:
        client.close()
    while ask(port, "/health")[0] != 200:
        pass  # the server has not seen the ends of the others yet
    assert ask(port, "/health")[0] == 200


def test_clients_that_ask_at_the_same_time_share_a_page() -> None:
    made = []

    async def make() -> Page:
        made.append(1)
        await asyncio.sleep(0)
        return Page(200, "text/plain", b"page")

    async def ask_twice() -> None:
        shared = SharedPage(make)
        first, second = await asyncio.gather(shared(), shared())
        assert first is second
        await shared()

    asyncio.run(ask_twice())
    assert len(made) == 2, "one page for the two concurrent requests, one for the last"


def test_a_page_that_fails_costs_its_request() -> None:
    async def make() -> Page:
        raise ValueError("half a metric")

    assert asyncio.run(SharedPage(make)()).status == 500


@pytest.mark.slow
def test_a_client_that_does_not_read_is_cut_off_and_counts_until_then() -> None:
    loop = asyncio.new_event_loop()

    async def large() -> Page:
        return Page(200, "text/plain", bytes(50_000_000))

    server = HttpServer(loop, {"/": large}, wait_s=0.2, answer_s=0.2)
    server.start_listening("127.0.0.1", 0)

    async def sulk() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        while not server.clients:  # noqa: ASYNC110 - seen from the client
            await asyncio.sleep(0.01)
        while server.clients:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        taken = 0
        with contextlib.suppress(ConnectionResetError):
            while part := await reader.read(1 << 20):
                taken += len(part)
        assert taken < 50_000_000, "it does not get the rest that it had not read by then"
        writer.transport.abort()

    loop.run_until_complete(asyncio.wait_for(sulk(), 60))
    server.stop_listening()
    loop.close()


def test_an_address_that_is_taken_or_none(port: int) -> None:
    with pytest.raises(Failure, match=rf"ottla.http.listener 127.0.0.1:{port}"):
        EmbeddedBroker(config={"ottla.http.listener": f"127.0.0.1:{port}"}).start()
    loop = asyncio.new_event_loop()
    for text in ("9000", "host:port", ":99999"):
        with pytest.raises(Failure, match=r"ottla\.http\.listener .* is not host:port"):
            listen_for_pages(HttpServer(loop, {}), text)
        with pytest.raises(ValueError, match="is not host:port"):
            parse_address(text)
    loop.close()
    assert parse_address("[::1]:80") == ("::1", 80)
    assert BrokerConfig.from_properties({})[0].ottla_http_listener is None


@pytest.mark.parametrize("request_head", [b"", b"GET /health HTTP/1.1\r\n\r\n"])
def test_a_thread_that_stops_leaves_no_socket_of_a_client(request_head: bytes) -> None:
    """One client has sent nothing yet, the other has its answer and does not close."""

    async def health() -> Page:
        return Page(200, "text/plain", b"ready")

    for _ in range(3):
        thread = PageThread({"/health": health}, "127.0.0.1:0")
        with socket.create_connection(("127.0.0.1", thread.port)) as client:
            client.sendall(request_head)
            if request_head:
                assert client.recv(4) == b"HTTP"
            thread.stop()
    gc.collect()  # a transport that is not closed warns here, and fails the test
