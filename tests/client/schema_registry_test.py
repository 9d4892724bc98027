"""The client of schema registries: what it asks, keeps and refuses.

Zone: real. Against a small HTTP server whose answers the test gives.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ottla.client.schemas.registry import RegistryRequestError, SchemaRegistry
from ottla.schemas.errors import InvalidSchema


class Answers:
    """A server, what it answers by path, and what it was asked."""

    def __init__(self) -> None:
        self.by_path: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.authorization: list[str | None] = []
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answers.asked.append(self.path)
                answers.authorization.append(self.headers.get("Authorization"))
                status, body = answers.by_path.get(
                    self.path, (404, b'{"error_code":40403,"message":"Schema not found"}')
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing is printed."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def give(self, path: str, document: object) -> None:
        self.by_path[path] = (200, json.dumps(document).encode())


@pytest.fixture
def answers() -> Iterator[Answers]:
    made = Answers()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_a_schema_is_asked_for_once(answers: Answers) -> None:
    answers.give("/schemas/ids/7", {"schema": '"int"'})
    answers.give("/schemas/guids/x-y", {"schema": "{}", "schemaType": "JSON"})
    registry = SchemaRegistry(answers.url + "/")
    for _ in range(2):
        assert registry.find_schema(7)[:3] == ('"int"', "AVRO", ())
        assert registry.find_schema("x-y")[:3] == ("{}", "JSON", ())
    assert answers.asked == ["/schemas/ids/7", "/schemas/guids/x-y"]


def test_references_come_after_those_that_they_refer_to(answers: Answers) -> None:
    def refer(name: str) -> dict[str, object]:
        return {"name": name, "subject": f"of/{name}", "version": 1}

    answers.give("/schemas/ids/1", {"schema": "top", "references": [refer("a"), refer("b")]})
    answers.give("/subjects/of%2Fa/versions/1?deleted=true", {"schema": "A", "references": [refer("b")]})
    answers.give("/subjects/of%2Fb/versions/1?deleted=true", {"schema": "B"})
    assert SchemaRegistry(answers.url).find_schema(1).references == (("b", "B"), ("a", "A"))
    assert len(answers.asked) == 3


def test_users_log_in_by_the_address(answers: Answers) -> None:
    answers.give("/schemas/ids/1", {"schema": '"int"'})
    SchemaRegistry(answers.url.replace("//", "//ada:p%40ss@")).find_schema(1)
    assert answers.authorization == ["Basic " + base64.b64encode(b"ada:p@ss").decode()]


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (404, b'{"error_code":40403,"message":"Schema not found"}', 40403),
        (502, b"<html>", 502),
        (500, b"[]", 500),
        (200, b"<html>", 0),
        (200, b"[" * 100_000, 0),
        (200, b"[]", 0),
        (200, b'{"schema": 5}', 0),
        (200, b'{"schema": "x", "references": 5}', 0),
    ],
)
def test_answers_that_are_no_schemas(answers: Answers, status: int, body: bytes, code: int) -> None:
    answers.by_path["/schemas/ids/1"] = (status, body)
    with pytest.raises(RegistryRequestError) as refused:
        SchemaRegistry(answers.url).find_schema(1)
    assert refused.value.code == code


def test_references_end(answers: Answers) -> None:
    """Those that go in a circle, and those to more and more schemas."""
    around = {"schema": "x", "references": [{"name": "r", "subject": "s", "version": 1}]}
    answers.give("/schemas/ids/1", around)
    answers.give("/subjects/s/versions/1?deleted=true", around)
    assert SchemaRegistry(answers.url).find_schema(1).references == (("r", "x"),)
    for each in range(200):
        further = {"schema": "x", "references": [{"name": f"n{each + 1}", "subject": f"n{each + 1}", "version": 1}]}
        answers.give(f"/subjects/n{each}/versions/1?deleted=true", further)
    answers.give("/schemas/ids/2", {"schema": "x", "references": [{"name": "n0", "subject": "n0", "version": 1}]})
    with pytest.raises(InvalidSchema, match="more than 100"):
        SchemaRegistry(answers.url).find_schema(2)


def test_a_registry_that_is_gone_is_named() -> None:
    with pytest.raises(RegistryRequestError, match=r"the schema registry at http://127\.0\.0\.1:1 does not answer"):
        SchemaRegistry("http://user:hunter@127.0.0.1:1").find_schema(1)


@pytest.mark.parametrize("url", ["", "localhost:8081", "ftp://x", "http://", "file:///etc/passwd"])
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(RegistryRequestError, match="is not the address of a registry"):
        SchemaRegistry(url)
