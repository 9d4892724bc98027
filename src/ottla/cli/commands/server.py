"""`ottla server`: runs a broker from a configuration file, as Kafka's kafka-server-start.

Zone: real. Turns the file and options into a broker configuration; `ottla.server.main` runs the broker.
"""

from __future__ import annotations

import click

from ottla.cli.broker_options import broker_options, make_config, read_overrides


@click.command()
@click.option(
    "--config",
    "path",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A server.properties file, or the same keys as TOML.",
)
@broker_options
def server(path: str, settings: tuple[str, ...], ready_file: str | None, log_level: str, log_format: str) -> int:
    """Run a broker from a server.properties file.

    KAFKA_… environment variables override the file, --set overrides both. When the broker is ready, it prints one line,
    `ready bootstrap=host:port`, to standard output; everything else goes to standard error.
    """
    from ottla.cli.broker_options import read_config, resolve_secrets
    from ottla.server.logs import configure_logging
    from ottla.server.main import serve_broker

    configure_logging(log_level, log_format)
    written = {**read_config(path), **read_overrides(settings)}
    return serve_broker(make_config(resolve_secrets(written), written), ready_file)
