"""`ottla up --schema-registry-port`: the registry that runs beside the brokers.

Zone: real. It is `ottla registry` in a process of its own.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # so that help does not import the server
    from ottla.cli.security.secure_setup import SecureSetup
    from ottla.server.child_process import ChildProcess

_PACKAGES = ("aiohttp", "fastavro", "jsonschema")


def registry_process(host: str, port: int, secure: SecureSetup | None) -> ChildProcess:
    """The process, which is not started yet; with `--secure` it serves HTTPS and has the users of the brokers.

    Raises click.ClickException: its packages are not installed.
    """
    from ottla.server.child_process import ChildProcess

    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise click.ClickException(f"the schema registry needs the package {missing[0]}: pip install 'ottla[registry]'")
    options = [] if secure is None else secure.registry_options()

    def make_command(bootstrap: str) -> list[str]:
        command = [sys.executable, "-m", "ottla", "registry", "--until-eof", "--host", host, "--port", str(port)]
        return [*command, "-b", bootstrap, *options]

    return ChildProcess("schema registry", make_command)
