"""`ottla up`: runs brokers in this terminal, one in this process or several under a supervisor.

Zone: real. Turns options into a configuration; `ottla.server.main` runs one broker, `ottla.server.supervisor.up`
several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from ottla.cli.broker_options import broker_options, make_config, read_overrides, resolve_secrets
from ottla.cli.options import output_option

if TYPE_CHECKING:  # so that help does not import the store
    from ottla.cli.security.secure_setup import SecureSetup
    from ottla.server.child_process import ChildProcess
    from ottla.server.supervisor.local_cluster_spec import Layout

_DEFAULTS: Final = {"group.initial.rebalance.delay.ms": "0"}
"""Better in a terminal than Kafka's default: the first consumer of a group does not wait for others."""


@click.command()
@click.option(
    "--data", type=click.Path(file_okay=False), help="Data directory, which is kept. Default: a temporary one."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9092, show_default=True, help="Port to listen on; 0: a free one."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on and to advertise to clients."
)
@click.option(
    "--brokers",
    "count",
    type=click.IntRange(1, 1000),
    help="Run this many processes, which share --port; their own ports follow it. Default: one broker, in this one.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="TLS, passwords and ACLs; makes certificates, a password and settings for clients in DIR-security.",
)
@click.option(
    "--schema-registry-port",
    "registry_port",
    type=click.IntRange(1, 65535),
    help="Run a schema registry on this port, in a process of its own, as soon as the brokers are ready.",
)
@click.option("--roll", is_flag=True, help="Rolling restart of the brokers on --data; waits until it is done.")
@output_option("text", "json")
@broker_options
def up(
    data: str | None,
    port: int,
    host: str,
    count: int | None,
    secure: bool,
    registry_port: int | None,
    roll: bool,
    output: str,
    settings: tuple[str, ...],
    ready_file: str | None,
    log_level: str,
    log_format: str,
) -> int:
    """Start a broker, or several, with sensible defaults, in this terminal.

    When it is ready, it prints one line, `ready bootstrap=host:port`, to standard output; log lines go to standard
    error. Ctrl-C stops everything; SIGHUP starts a rolling restart of several brokers.
    """
    from ottla.config.rows import list_word, split_list
    from ottla.server.logs import configure_logging

    given = resolve_secrets({**_DEFAULTS, **read_overrides(settings)})
    if roll:
        return _roll_brokers(data)
    configure_logging(log_level, log_format, who="" if count is None else "supervisor")
    if count is not None:
        words = _Words(host, port, given, (log_level, log_format), output, ready_file, secure, registry_port)
        return _serve_in(data, lambda directory: _run_several(directory, count, words))

    def serve(directory: str, given: dict[str, str]) -> int:
        bracketed = f"[{host}]" if ":" in host else host
        defaults = {"listeners": f"PLAINTEXT://{bracketed}:{port}"}
        if secure:
            defaults = _secure_settings(directory, host, port)
            defaults |= {"listeners": f"SASL_SSL://{bracketed}:{port}", "security.inter.broker.protocol": "SASL_SSL"}
        beside = _registry_beside(directory, host, registry_port, secure)
        return _run_one(directory, {**defaults, **given}, ready_file, beside)

    if dirs := split_list(given.get("log.dirs", given.get("log.dir", ""))):
        return serve(dirs[0], given)
    return _serve_in(data, lambda directory: serve(directory, {**given, "log.dirs": list_word(directory)}))


class _Words(NamedTuple):
    """The options of several brokers."""

    host: str
    port: int
    settings: dict[str, str]
    log: tuple[str, str]
    output: str
    ready_file: str | None
    secure: bool
    registry_port: int | None


def _registry_beside(directory: str, host: str, port: int | None, secure: bool) -> ChildProcess | None:
    """The schema registry of a data directory, whose files of `--secure` exist."""
    if port is None:
        return None
    from ottla.cli.schema_registry import registry_process

    return registry_process(host, port, _secure_setup(directory) if secure else None)


def _secure_setup(directory: str) -> SecureSetup:
    import os

    from ottla.cli.security.secure_setup import SecureSetup

    return SecureSetup(f"{os.path.abspath(directory)}-security")


def _secure_settings(directory: str, host: str, port: int) -> dict[str, str]:
    """Make the files of `--secure` beside a data directory, or take those that are there; returns broker settings."""
    setup = _secure_setup(directory)
    setup.make_files(host, port)
    setup.explain_files()
    return setup.broker_settings()


def _serve_in(data: str | None, serve: Callable[[str], int]) -> int:
    """Serve in a directory; in a temporary one when `data` is None."""
    import shutil
    import tempfile

    if data is not None:
        return serve(data)
    temporary = tempfile.mkdtemp(prefix="ottla-")
    directory = f"{temporary}/data"
    click.echo(f"data directory {directory}, removed at exit; use --data DIR to keep one", err=True)
    try:
        return serve(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run_one(directory: str, properties: dict[str, str], ready_file: str | None, beside: ChildProcess | None) -> int:
    from ottla.server.main import serve_broker

    if there := _read_layout(directory).brokers:
        raise click.UsageError(f"{directory} holds the data of {len(there)} brokers: start them with --brokers")
    return serve_broker(make_config(properties), ready_file, beside)


def _read_layout(directory: str) -> Layout:
    import os

    from ottla.server.supervisor.local_cluster_spec import layout_of

    return layout_of(os.listdir(directory) if os.path.isdir(directory) else [])


def _run_several(data: str, count: int, words: _Words) -> int:
    import os
    from importlib.util import find_spec

    from ottla.server.supervisor.local_cluster_spec import (
        InvalidClusterSpec,
        LocalClusterSpec,
        StoreSpec,
        brokers_of,
        properties_of,
    )
    from ottla.server.supervisor.status_report import StatusReport
    from ottla.server.supervisor.up import run_supervisor

    if find_spec("kazoo") is None:
        raise click.ClickException("several brokers need the package kazoo: pip install 'ottla[cluster]'")
    settings, protocol = words.settings, "PLAINTEXT"
    if words.secure:
        settings, protocol = {**_secure_settings(data, words.host, words.port), **settings}, "SASL_SSL"
    try:
        brokers = brokers_of(count, _read_layout(data), data)
        fleet = LocalClusterSpec(os.path.abspath(data), words.host, words.port, brokers, settings, words.log, protocol)
        make_config(properties_of(fleet, brokers[0], 1, 2, StoreSpec("127.0.0.1:1", "ottla:none"), "localhost"))
    except InvalidClusterSpec as wrong:
        raise click.UsageError(str(wrong)) from None
    beside = _registry_beside(data, words.host, words.registry_port, words.secure)
    return run_supervisor(fleet, StatusReport(fleet.data, words.output), words.ready_file, beside)


def _roll_brokers(data: str | None) -> int:
    from ottla.seams import Failure
    from ottla.server.supervisor.up import roll_brokers

    if data is None:
        raise click.UsageError("--roll needs --data, the directory of the running brokers")
    try:
        roll_brokers(data, click.echo)
    except Failure as failure:
        raise click.ClickException(failure.message) from None
    click.echo("rolled")
    return 0
