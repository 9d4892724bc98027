"""A broker's pages for monitoring: where they are served, and `/health`.

Zone: real. The server of pages is `ottla.http_pages`; it listens only if `ottla.http.listener` is set.
"""

from __future__ import annotations

import json
from typing import Final

from ottla.http_pages import HttpServer, Page, parse_address
from ottla.metrics import Registry
from ottla.seams import Failure, Kind
from ottla.server.os_errors import failure_of

HEALTH_ROWS: Final = (
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_server_replicamanager_offlinereplicacount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_log_logmanager_offlinelogdirectorycount",
)
"""Metrics that are 0 in a healthy cluster."""


def listen_for_pages(server: HttpServer, address: str) -> None:
    """Serve pages on a `host:port`. Raises Failure with the address when it is none, or is taken."""
    try:
        host, port = parse_address(address)
    except ValueError as error:
        raise Failure(Kind.NOT_DONE, f"ottla.http.listener {error}") from None
    try:
        server.start_listening(host, port)
    except OSError as error:
        raise failure_of(error, f"ottla.http.listener {host}:{port}") from None


def health_page(node_id: int, ready: bool, registry: Registry) -> Page:
    """200 when the broker serves clients, else 503; `problems`: metrics that should be 0 and are not."""
    values = {name: registry.total_of(name) for name in HEALTH_ROWS}
    problems = {name: value for name, value in values.items() if value}
    document = {"status": "ready" if ready else "not ready", "node_id": node_id, "problems": problems}
    return Page(200 if ready else 503, "application/json", f"{json.dumps(document)}\n".encode())
