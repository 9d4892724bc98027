"""`ottla registry`: a schema registry over any Kafka cluster.

Zone: real. Serves until SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.failure import CommandFailed
from ottla.cli.options import client_settings, common_options, print_note

if TYPE_CHECKING:
    import ssl

    from ottla.registry.service import RegistryService


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8081, show_default=True, help="Port; 0: a free one.")
@click.option(
    "--users", type=click.Path(exists=True, dir_okay=False), help="File of lines USER:PASSWORD that may log in."
)
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Certificate chain (PEM): serve HTTPS.")
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its key (PEM), if it is in another file."
)
@click.option("--until-eof", is_flag=True, hidden=True, help="Stop at the end of standard input.")
@common_options
def registry(
    host: str, port: int, users: str | None, tls_cert: str | None, tls_key: str | None, until_eof: bool, **_: Any
) -> None:
    """Serve a schema registry: Schema Registry's REST interface, kept in the topic _schemas.

    Several may run for one cluster: all answer, and they take turns at writing.
    """
    from ottla.registry.service import RegistryService

    credentials = None if users is None else _read_users(Path(users))
    tls = None if tls_cert is None else _server_context(tls_cert, tls_key)
    if credentials is not None and tls is None:
        print_note("passwords are sent unencrypted: give --tls-cert, or let only a proxy with TLS reach this port")
    service = RegistryService(client_settings())
    try:
        _serve(service, host, port, credentials, tls, until_eof)
    finally:
        service.stop()


def _serve(
    service: RegistryService,
    host: str,
    port: int,
    credentials: dict[str, str] | None,
    tls: ssl.SSLContext | None,
    until_eof: bool,
) -> None:
    import asyncio

    from ottla.registry.server import serve_registry

    async def serve_until_stopped() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        if until_eof:  # the process that holds the other end of the pipe has ended, or wants this one to end
            loop.add_reader(0, lambda: None if os.read(0, 4096) else stop.set())
        scheme = "http" if tls is None else "https"

        def announce(address: str, actual: int) -> None:
            print_note(f"schema registry ready at {scheme}://{address}:{actual}")

        await serve_registry(service, host, port, stop=stop, credentials=credentials, tls=tls, on_ready=announce)

    asyncio.run(serve_until_stopped())


def _read_users(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    pairs = dict(line.split(":", 1) for line in lines if ":" in line)
    if len(pairs) != len(lines) or not pairs:
        raise CommandFailed(f"{path}: each line is USER:PASSWORD, and no user may be there twice")
    return pairs


def _server_context(certificate: str, key: str | None) -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise CommandFailed(f"{certificate}: not a PEM certificate with its key: {error.reason or error}") from error
    return context
