"""`ottla tls`: certificates for a cluster on one's own machine.

Zone: real. Turns options into files; `ottla.cli.security.certificates` makes the certificates.
"""

from __future__ import annotations

import os

import click

from ottla.cli.options import common_options, output_option
from ottla.cli.views.output import Json, write_json, write_line

_DAYS_MAX = 36_500
_LOCAL = ("localhost", "127.0.0.1", "::1")


@click.group()
def tls() -> None:
    """Make certificates for a cluster on your own machine."""


@tls.command("make")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--host", "hosts", multiple=True, metavar="HOST",
              help="Clients reach the brokers by this name or address too; may repeat.")  # fmt: skip
@click.option("--client", "clients", multiple=True, metavar="NAME",
              help="A client with a certificate of its own, the user CN=NAME; by default one, client.")  # fmt: skip
@click.option("--days", type=click.IntRange(1, _DAYS_MAX), default=825, show_default=True, help="Valid for this long.")
@output_option("text", "json")
@common_options
def make_certificates(directory: str, hosts: tuple[str, ...], clients: tuple[str, ...], days: int, output: str) -> None:
    """Make an authority, and certificates for brokers and clients, as PEM files in DIRECTORY.

    The brokers' is for localhost, this machine's name and --host. Only you can read the keys. Nothing is overwritten.
    """
    import socket

    from ottla.cli.security.certificates import Authority
    from ottla.cli.security.secret_files import write_new_files

    names = list(dict.fromkeys(clients or ("client",)))
    for name in names:
        if os.path.basename(name) != name or name in ("ca", "broker", ".", ".."):
            raise click.UsageError(f"{name!r} cannot be the name of a client: it is a name of a file, not ca or broker")
    directory = os.path.abspath(directory)
    files = {name: os.path.join(directory, f"{name}.pem") for name in ("ca", "broker", *names)}
    reached = list(dict.fromkeys([*_LOCAL, socket.gethostname(), *hosts]))
    authority = Authority("Ottla local authority", days)
    content = {files[name]: authority.issue_client(name) for name in names}
    content |= {files["ca"]: authority.certificate, os.path.join(directory, "ca.key"): authority.key}
    content[files["broker"]] = authority.issue_broker("broker", reached)
    write_new_files(content, public=[files["ca"]])
    if output == "json":
        document: dict[str, Json] = {"directory": directory, "files": files, "hosts": reached}
        write_json({**document, "expires": f"{authority.end:%Y-%m-%d}"})
    else:
        _explain_files(files, names, reached, f"{authority.end:%Y-%m-%d}")


def _explain_files(files: dict[str, str], clients: list[str], hosts: list[str], expires: str) -> None:
    directory = os.path.dirname(files["ca"])
    write_line(f"Certificates until {expires} in {directory}, for brokers on {', '.join(hosts)}.")
    write_line(f"Keep ca.key in a safe place, or delete it: {os.path.join(directory, 'ca.key')}")
    write_line("\n# server.properties of the brokers; and a listener SSL:// or SASL_SSL://")
    for role, name in (("keystore", "broker"), ("truststore", "ca")):
        write_line(f"ssl.{role}.type=PEM\nssl.{role}.location={files[name]}")
    write_line("\n# settings of clients (for librdkafka: ssl.ca.location)")
    write_line(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={files['ca']}")
    write_line("\n# with ssl.client.auth=required also (for librdkafka: ssl.certificate.location and ssl.key.location)")
    for name in clients:
        write_line(f"ssl.keystore.type=PEM\nssl.keystore.location={files[name]}")
