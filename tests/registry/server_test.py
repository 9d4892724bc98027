"""The registry's HTTP server: what is refused before a handler sees it, and who may ask.

Zone: real.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from ottla.client.errors import UnreachableError
from ottla.registry.errors import RegistryError
from ottla.registry.registration import Decision
from ottla.registry.routes import Request, Routes
from ottla.registry.server import BODY_MAX, serve_registry
from ottla.registry.state import RegistryState


class ServiceInMemory:
    """Answers by a state in memory; `fail` is raised instead, if it is set."""

    def __init__(self) -> None:
        self._state = RegistryState()
        self._routes = Routes(self._state, "")
        self.fail: Exception | None = None

    def answer(self, handler: Callable[[Routes, Request], object], request: Request) -> object:
        if self.fail is not None:
            raise self.fail
        return handler(self._routes, request)

    def submit(self, handler: Callable[[Routes, Request], object], request: Request) -> Future[object]:
        done: Future[object] = Future()
        try:
            decided = self.answer(handler, request)
            assert isinstance(decided, Decision)
            for each in decided.records:
                self._state.apply(each.key, each.value)
            done.set_result(decided.answer)
        except Exception as error:
            done.set_exception(error)
        return done


@contextmanager
def served(service: ServiceInMemory, credentials: dict[str, str] | None = None) -> Iterator[int]:
    """The port of a server."""
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), []
    stop: list[asyncio.Event] = []

    async def serve() -> None:
        stop.append(asyncio.Event())

        def on_ready(_: str, port: int) -> None:
            ports.append(port)
            ready.set()

        options: Any = {"stop": stop[0], "credentials": credentials, "on_ready": on_ready}
        await serve_registry(service, "127.0.0.1", 0, **options)  # type: ignore[arg-type]

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop[0].set)
        thread.join()
        loop.close()


def ask(
    port: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        assert answer.headers.get_content_type() == "application/vnd.schemaregistry.v1+json"
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def service() -> ServiceInMemory:
    return ServiceInMemory()


@pytest.fixture(scope="module")
def port(service: ServiceInMemory) -> Iterator[int]:
    with served(service) as made:
        yield made


def test_names_of_subjects_are_quoted_in_paths(port: int) -> None:
    body = json.dumps({"schema": '"int"'}).encode()
    for path in ("/subjects/a%2Fb%20c/versions", "/contexts/.lab/subjects/%C3%A4/versions"):
        status, answer = ask(port, "POST", path, body)
        assert (status, answer["id"], len(answer["guid"])) == (200, 1, 36)
    assert ask(port, "GET", "/subjects") == (200, [":.lab:ä", "a/b c"])
    assert ask(port, "GET", "/subjects/a%2Fb%20c/versions/1/schema") == (200, "int")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("GET", "/subjects/a/b/c", None, 404),
        ("PUT", "/subjects", b"{}", 405),
        ("POST", "/subjects/a/versions", b"{", 400),
        ("POST", "/subjects/a/versions", b"\xff\xfe", 400),
        ("POST", "/subjects/a/versions", b"[" * 100_000, 400),
        ("POST", "/subjects/a/versions", b"[]", 400),
        ("POST", "/subjects/a/versions", b"", 400),
        ("POST", "/subjects/a/versions", b"x" * (BODY_MAX + 1), 413),
        ("GET", "/schemas/ids/99999999999999999999", None, 404),
        ("GET", "/subjects?limit=" + "9" * 5_000, None, 404),
    ],
)
def test_requests_that_are_refused(port: int, method: str, path: str, body: bytes | None, status: int) -> None:
    code, document = ask(port, method, path, body)
    assert code == status
    assert document["error_code"] == status
    assert document["message"]
    assert ask(port, "GET", "/") == (200, {}), "others are served"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RegistryError(50003, "late"), 500, 50003),
        (UnreachableError("no broker"), 500, 50001),
        (RuntimeError("a defect"), 500, 50001),
    ],
)
def test_failures_cost_their_own_request(
    service: ServiceInMemory, port: int, error: Exception, status: int, code: int
) -> None:
    service.fail = error
    try:
        for method, path in (("GET", "/subjects"), ("POST", "/subjects/x/versions")):
            found, document = ask(port, method, path, b'{"schema": "\\"int\\""}' if method == "POST" else None)
            assert (found, document["error_code"]) == (status, code)
    finally:
        service.fail = None
    assert ask(port, "GET", "/") == (200, {})


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Basic " + base64.b64encode(b"ada:se:cret").decode(), 200),
        ("basic " + base64.b64encode(b"ada:se:cret").decode(), 200),
        ("Basic " + base64.b64encode(b"ada:secret").decode(), 401),
        ("Basic " + base64.b64encode(b"eve:").decode(), 401),
        ("Basic " + base64.b64encode(b"\xff\xfe").decode(), 401),
        ("Basic !!!", 401),
        ("Bearer x", 401),
        ("", 401),
    ],
)
def test_users_are_known_by_name_and_password(header: str, status: int) -> None:
    with served(ServiceInMemory(), {"ada": "se:cret"}) as port:
        assert ask(port, "GET", "/subjects", headers={"Authorization": header})[0] == status
        assert ask(port, "GET", "/nothing", headers={"Authorization": header})[0] == (404 if status == 200 else 401)
