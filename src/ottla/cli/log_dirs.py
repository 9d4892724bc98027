"""`ottla broker log-dirs` and `ottla broker move`: replicas and the log directories of their brokers.

Zone: real.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from ottla.cli.options import common_options, connect_cluster, option_value, output_option, print_note
from ottla.cli.partitions import parse_partition
from ottla.cli.views.output import Json, write_json, write_jsonl, write_table

if TYPE_CHECKING:
    from ottla.client import Admin, ClientError, LogDir, Replica

_LOOK_S: Final = 0.5
"""Between two checks of the moves' progress."""
Found = Mapping[int, "list[LogDir | ClientError]"]


@click.command("log-dirs")
@click.argument("ids", nargs=-1, type=int, metavar="[ID]...")
@click.option("-t", "--topic", "topics", multiple=True, metavar="NAME", help="Replicas of these topics only.")
@click.option("--replicas", is_flag=True, help="Show every replica, with its size and lag.")
@output_option("table", "json", "jsonl")
@common_options
def log_dirs(ids: tuple[int, ...], topics: tuple[str, ...], replicas: bool, output: str) -> None:
    """Show the log directories of brokers (all, or those named): space, replicas, and replicas being moved in."""
    from ottla.client import Admin

    with connect_cluster() as client:
        found = Admin(client).describe_log_dirs()
    # Refused before anything is printed: a script must not take half of a table for all of it.
    if missing := sorted(set(ids) - set(found)):
        raise click.ClickException(f"there is no broker {', '.join(map(str, missing))}")
    shown = {node: _filter_replicas(dirs, topics) for node, dirs in found.items() if not ids or node in ids}
    if output == "json":
        write_json(dir_documents(shown))
    elif output == "jsonl":
        write_jsonl(dir_documents(shown))
    elif replicas:
        header = ("BROKER", "DIRECTORY", "TOPIC", "PARTITION", "SIZE", "LAG", "COPY")
        write_table(header, _replica_rows(shown))
    else:
        write_table(("BROKER", "DIRECTORY", "REPLICAS", "COPIES", "SIZE", "TOTAL", "FREE", "ERROR"), _dir_rows(shown))


def _filter_replicas(
    dirs: list[LogDir | ClientError] | ClientError, topics: Sequence[str]
) -> list[LogDir | ClientError]:
    """The directories with their replicas of these topics; of all topics when none is named."""
    from ottla.client import LogDir

    return [
        each._replace(replicas=tuple(one for one in each.replicas if not topics or one.tp.topic in topics))
        if isinstance(each, LogDir)
        else each
        for each in (dirs if isinstance(dirs, list) else [dirs])
    ]


def dir_documents(found: Found) -> list[Json]:
    """One document per directory; a failed directory, or a broker that did not answer, has one with its error."""
    return [{"broker": node, **_dir_document(each)} for node, dirs in found.items() for each in dirs]


def _dir_document(each: LogDir | ClientError) -> Mapping[str, Json]:
    from ottla.client import ClientError

    if isinstance(each, ClientError):
        return {"directory": None, "error": str(each)}
    return {
        "directory": each.path,
        "error": None,
        "total_bytes": each.total_bytes,
        "usable_bytes": each.usable_bytes,
        "replicas": [
            {
                "topic": replica.tp.topic,
                "partition": replica.tp.partition,
                "size": replica.size,
                "offset_lag": replica.offset_lag,
                "is_future": replica.is_future,
            }
            for replica in each.replicas
        ],
    }


def _dir_rows(found: Found) -> list[Sequence[object]]:
    from ottla.client import ClientError

    rows: list[Sequence[object]] = []
    for node, dirs in found.items():
        for each in dirs:
            if isinstance(each, ClientError):
                rows.append((node, None, None, None, None, None, None, each))
                continue
            copies = sum(replica.is_future for replica in each.replicas)
            size = sum(replica.size for replica in each.replicas)
            # Brokers before Kafka 3.3 do not report space: -1 is no size.
            total, free = (None if value < 0 else value for value in (each.total_bytes, each.usable_bytes))
            rows.append((node, each.path, len(each.replicas) - copies, copies, size, total, free, None))
    return rows


def _replica_rows(found: Found) -> list[Sequence[object]]:
    from ottla.client import LogDir

    return [
        (node, each.path, *replica.tp, replica.size, replica.offset_lag, "yes" if replica.is_future else None)
        for node, dirs in found.items()
        for each in dirs
        if isinstance(each, LogDir)
        for replica in each.replicas
    ]


@click.command("move")
@click.argument("node", type=int, metavar="ID")
@click.argument("directory")
@click.argument("partitions", nargs=-1, required=True, metavar="TOPIC:PARTITION...")
@click.option("--wait", is_flag=True, help="Return when all are moved, or when --timeout has passed.")
@output_option("table", "json", "jsonl")
@common_options
def move(node: int, directory: str, partitions: tuple[str, ...], wait: bool, output: str) -> None:
    """Move replicas of broker ID to another of its log directories. Naming their present one cancels the move."""
    from ottla.client import Admin, Replica

    # A partition that is named twice is moved once.
    targets = {Replica(parse_partition(word), node): directory for word in dict.fromkeys(partitions)}
    with connect_cluster() as client:
        admin = Admin(client)
        results = admin.alter_replica_log_dirs(targets)
        if wait:
            _wait_moved(admin, [replica for replica, error in results.items() if error is None], directory)
    rows: list[dict[str, Json]] = [
        {"topic": tp.topic, "partition": tp.partition, "error": None if error is None else str(error)}
        for (tp, _), error in results.items()
    ]
    if output == "json":
        write_json(rows)
    elif output == "jsonl":
        write_jsonl(rows)
    else:
        done = "moved" if wait else "begun"
        write_table(("TOPIC", "PARTITION", "RESULT"), [(r["topic"], r["partition"], r["error"] or done) for r in rows])
    if any(error is not None for error in results.values()):
        raise SystemExit(1)


def _wait_moved(admin: Admin, replicas: Sequence[Replica], directory: str) -> None:
    """Block until the replicas are moved. Raises click.ClickException when the time is over."""
    end = time.monotonic() + option_value("timeout_s", 3600.0)
    while left := _not_moved(admin, replicas, directory):
        if time.monotonic() > end:
            raise click.ClickException(
                f"{len(left)} of {len(replicas)} replicas are not in {directory} yet, and are still being moved: "
                "`ottla broker log-dirs --replicas` shows how far"
            )
        print_note(f"{len(left)} replicas on their way")
        time.sleep(_LOOK_S)


def _not_moved(admin: Admin, replicas: Sequence[Replica], directory: str) -> list[Replica]:
    from ottla.client import LogDir

    there: set[object] = set()
    found = admin.describe_log_dirs([replica.tp for replica in replicas])
    for replica in replicas:
        dirs = found.get(replica.node_id)
        for each in dirs if isinstance(dirs, list) else ():
            # Paths are compared without a slash at the end, which a shell's completion adds.
            if isinstance(each, LogDir) and each.path.rstrip("/") == directory.rstrip("/"):
                there.update((one.tp, replica.node_id) for one in each.replicas if not one.is_future)
    return [replica for replica in replicas if replica not in there]
