"""`ottla support-bundle`: one file for a bug report, with what others need to know about a cluster.

Zone: real.
"""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from ottla.cli.files.finished_file import open_finished
from ottla.cli.options import (
    ClientSettings,
    client_settings,
    common_options,
    given_settings,
    option_value,
    output_option,
)
from ottla.cli.views.output import write_json, write_table

if TYPE_CHECKING:
    from ottla.cli.diagnosis.bundle_parts import Part

_CALL_MS = 10_000
"""How long one request may take, unless --timeout is given: half a cluster is what a bundle is made of."""


class _Written(NamedTuple):
    """A file of the bundle: its size, and the error that it has in place of its content."""

    name: str
    size: int
    error: str | None


@click.command("support-bundle")
@click.argument("file", required=False)
@click.option("--metrics", "pages", multiple=True, metavar="URL", help="Add this page of a broker's metrics.")
@click.option("--log", "logs", multiple=True, metavar="FILE", help="Add the last 4 MiB of this log file.")
@click.option("--overwrite", is_flag=True, help="Replace FILE when it exists.")
@output_option("table", "json")
@common_options
def support_bundle(
    file: str | None, pages: tuple[str, ...], logs: tuple[str, ...], overwrite: bool, output: str
) -> None:
    """Write FILE.tar.gz with metadata, settings, groups, log directories and versions of a cluster, without secrets.

    A part that cannot be read is a file that says why. Read the bundle before you give it away: names are in it.
    """
    import os

    for each in pages:
        if not each.startswith(("http://", "https://")):
            raise click.UsageError(f"{each!r} is not an address of metrics: use http://HOST:PORT/metrics")
    path = file or time.strftime("ottla-support-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime())
    if os.path.isfile(path) and not overwrite:
        raise click.UsageError(f"{path} exists: --overwrite replaces it")
    with open_finished(path) as stream:
        written = _write_bundle(stream, pages, logs)
    if output == "json":
        write_json({"file": path, "parts": [each._asdict() for each in written]})
    else:
        write_table(("PART", "BYTES", "ERROR"), written)
        click.echo(path)


def _write_bundle(stream: BinaryIO, pages: Sequence[str], logs: Sequence[str]) -> list[_Written]:
    from ottla.cli.diagnosis.bundle_parts import cluster_parts, file_parts
    from ottla.client import Cluster
    from ottla.client.settings import ClientConfig

    short: ClientSettings = {} if option_value("timeout_s") is not None else {"default.api.timeout.ms": _CALL_MS}
    config = ClientConfig.from_mapping(client_settings(short))
    with tarfile.open(fileobj=stream, mode="w:gz") as bundle, Cluster(config) as cluster:
        parts = [*cluster_parts(config, cluster, given_settings()), *file_parts(pages, logs)]
        return [_write_part(bundle, each) for each in parts]


def _write_part(bundle: tarfile.TarFile, part: Part) -> _Written:
    """Add a file with the part, or with its error: the others are as useful without it."""
    from ottla.cli.diagnosis.bundle_parts import PART_BYTES
    from ottla.cli.explain import explain_error

    name, failure = part.name, None
    try:
        content = part.read()
    except Exception as error:  # noqa: BLE001  # also a bug in one part must not lose the others
        failure = explain_error(error)
        name, content = f"{part.name}.error.txt", failure.encode("utf-8", "replace")
    if len(content) > PART_BYTES:
        name, failure = f"{part.name}.cut", f"cut after {PART_BYTES} of {len(content)} bytes"
        content = content[:PART_BYTES]
    entry = tarfile.TarInfo(f"ottla-support/{name}")
    entry.size, entry.mtime = len(content), int(time.time())
    bundle.addfile(entry, io.BytesIO(content))
    return _Written(name, len(content), failure)
