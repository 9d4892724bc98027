"""`ottla up`: runs brokers in this terminal, one in this process or several under a supervisor.

Zone: real. Turns options into a configuration; `ottla.server.main` runs one broker, `ottla.server.supervisor.up`
several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from ottla.cli.broker_options import broker_options, make_config, read_environment, read_overrides, resolve_secrets
from ottla.cli.options import output_option

if TYPE_CHECKING:  # so that help does not import the store
    from ottla.cli.security.secure_setup import SecureSetup
    from ottla.server.child_process import ChildProcess
    from ottla.server.supervisor.local_cluster_spec import Layout

_DEFAULTS: Final = {"group.initial.rebalance.delay.ms": "0"}
"""Better in a terminal than Kafka's default: the first consumer of a group does not wait for others."""

_ONE_OF: Final = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "min.insync.replicas",
)
"""Keys that are 1 with `--cores`."""


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
    "--advertise",
    metavar="HOST",
    help="Host name or address that clients receive, if it is another one than --host, as for a container.",
)
@click.option(
    "--brokers",
    "count",
    type=click.IntRange(1, 1000),
    help="Run this many processes, which share --port; their own ports follow it. Default: one broker, in this one.",
)
@click.option(
    "--cores",
    type=click.IntRange(0, 1000),
    help="Use this many cores, 0: all. As --brokers, with that many partitions and one replica of each topic.",
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
    advertise: str | None,
    count: int | None,
    cores: int | None,
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
    error. Ctrl-C stops everything; SIGHUP starts a rolling restart of several brokers. Environment variables KAFKA_…
    set broker keys, as --set does, which takes precedence.
    """
    from ottla.config.rows import list_word, split_list
    from ottla.server.logs import configure_logging

    if roll:
        return _roll_brokers(data)
    count, preset = _plan_cores(count, cores)
    given = resolve_secrets({**_DEFAULTS, **preset, **read_environment(), **read_overrides(settings)})
    configure_logging(log_level, log_format, who="" if count is None else "supervisor")
    if count is not None:
        log = (log_level, log_format)
        words = _Words(host, port, given, log, output, ready_file, secure, registry_port, advertise)
        return _serve_in(data, lambda directory: _run_several(directory, count, words))

    def serve(directory: str, given: dict[str, str]) -> int:
        protocol = "SASL_SSL" if secure else "PLAINTEXT"
        defaults = {"listeners": f"{protocol}://{_bracketed(host)}:{port}"}
        if advertise is not None:
            defaults["advertised.listeners"] = f"{protocol}://{_bracketed(advertise)}:*"
        if secure:
            defaults |= _secure_settings(directory, advertise or host, port)
            defaults["security.inter.broker.protocol"] = protocol
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
    advertised: str | None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _usable_cores() -> int:
    import os

    # macOS has no affinity of processes.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _plan_cores(count: int | None, cores: int | None) -> tuple[int | None, dict[str, str]]:
    """The number of brokers, and the settings that `--cores` implies."""
    if cores is None:
        return count, {}
    if count is not None:
        raise click.UsageError("--cores and --brokers both say how many brokers run: give one of them")
    cores = cores or _usable_cores()
    # A copy on the same machine protects from the death of one process, which the supervisor starts again, and costs
    # the work of a core.
    return cores if cores > 1 else None, {"num.partitions": str(cores), **dict.fromkeys(_ONE_OF, "1")}


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
        made = _secure_settings(data, words.advertised or words.host, words.port)
        settings, protocol = {**made, **settings}, "SASL_SSL"
    try:
        brokers = brokers_of(count, _read_layout(data), data)
        place = (os.path.abspath(data), words.host, words.port)
        fleet = LocalClusterSpec(*place, brokers, settings, words.log, protocol, words.advertised)
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
