"""`ottla reassign`: move partitions to other brokers, or give them more or fewer replicas.

Zone: real. Plans are files in the format of Kafka's own tool, so that each tool can run the other's plans.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from ottla.cli.name_options import complete_topics
from ottla.cli.options import common_options, connect_cluster, option_value, output_option, print_note
from ottla.cli.partitions import assignment_text, parse_partition, read_assignment, write_results
from ottla.cli.views.output import Json, write_json, write_jsonl, write_line, write_table
from ottla.client import Admin, ConfigChange, ConfigOp, Resource, ResourceType, first_error
from ottla.types import TopicPartition

# The throttle of a reassignment is made of settings with Kafka's names. As in KIP-73, the brokers have the rate, and
# the topics list the replicas that it applies to.

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
"""Bytes per second, of each broker."""
REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""`partition:broker` pairs, of each topic."""


def set_throttle(
    admin: Admin,
    before: Mapping[TopicPartition, Sequence[int]],
    after: Mapping[TopicPartition, Sequence[int]],
    rate: int,
) -> None:
    """Limit reassignment traffic, from present replicas and to new ones, to `rate` bytes per second on each broker that
    has one of them. Raises ClientError.
    """
    changes: dict[Resource, list[ConfigChange]] = {}
    touched: set[int] = set()
    for topic in sorted({tp.topic for tp in after}):
        own = [tp for tp in after if tp.topic == topic and tp in before]
        leaders = [(tp.partition, node) for tp in own for node in before[tp]]
        followers = [(tp.partition, node) for tp in own for node in after[tp] if node not in before[tp]]
        touched |= {node for _, node in leaders + followers}
        changes[Resource(ResourceType.TOPIC, topic)] = [
            ConfigChange(key, ",".join(f"{partition}:{node}" for partition, node in replicas))
            for key, replicas in zip(REPLICAS, (leaders, followers), strict=True)
            if replicas
        ]
    for broker in _live_brokers(admin, touched):
        changes[broker] = [ConfigChange(key, str(rate)) for key in RATES]
    _apply_configs(admin, changes)


def clear_throttle(admin: Admin, topics: Sequence[str], brokers: Collection[int] = ()) -> None:
    """Remove the throttle of these topics, and the rates of the brokers that it names. Raises ClientError.

    Brokers that the throttle of another topic names keep their rates while that topic is moved.
    brokers: those that the caller knows; a broker of Apache Kafka may not have the settings yet that were just made.
    """
    moving = {tp.topic for tp in admin.list_partition_reassignments()} - set(topics)
    named = _throttled_brokers(admin, topics) | set(brokers)
    touched = named - _throttled_brokers(admin, sorted(moving))
    changes = {
        Resource(ResourceType.TOPIC, topic): [ConfigChange(key, None, ConfigOp.DELETE) for key in REPLICAS]
        for topic in topics
    }
    for broker in _live_brokers(admin, touched):
        changes[broker] = [ConfigChange(key, None, ConfigOp.DELETE) for key in RATES]
    _apply_configs(admin, changes)


def _throttled_brokers(admin: Admin, topics: Sequence[str]) -> set[int]:
    """The brokers in the lists of throttled replicas of these topics. `*`, which is set by hand, names none."""
    found: set[int] = set()
    for entries in admin.describe_configs(Resource(ResourceType.TOPIC, topic) for topic in topics).values():
        if not isinstance(entries, list):  # the topic was deleted meanwhile
            continue
        words = [word for each in entries if each.name in REPLICAS for word in (each.value or "").split(",")]
        nodes = [word.partition(":")[2].strip() for word in words]
        found |= {int(node) for node in nodes if node.isdecimal()}
    return found


def _live_brokers(admin: Admin, nodes: Collection[int]) -> list[Resource]:
    """Those of these brokers that are alive: settings of others cannot be changed through any of them."""
    live = [node.node_id for node in admin.describe_cluster().nodes]
    return [Resource(ResourceType.BROKER, str(node)) for node in live if node in nodes]


def _apply_configs(admin: Admin, changes: Mapping[Resource, Sequence[ConfigChange]]) -> None:
    error = first_error(admin.alter_configs({resource: each for resource, each in changes.items() if each}))
    if error is not None:
        raise error


if TYPE_CHECKING:
    from ottla.client import Admin, Reassignment
    from ottla.types import TopicPartition

_LOOK_S: Final = 0.5
"""Between two checks of the progress of a reassignment."""


@click.group()
def reassign() -> None:
    """Move partitions between brokers."""


@reassign.command()
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_topics,
    help="A topic to move; all by default.",
)
@click.option(
    "--to", "allowed", metavar="ID,ID,…", help="The brokers that may hold replicas; all live ones by default."
)
@click.option(
    "-r",
    "--replication-factor",
    "factor",
    type=click.IntRange(min=1),
    help="Replicas per partition; as now by default.",
)
@output_option("json", "table")
@common_options
def plan(topics: tuple[str, ...], allowed: str | None, factor: int | None, output: str) -> None:
    """Print a plan that moves as little data as possible. Save it, check it, and pass it to `ottla reassign run`."""
    from ottla.cli.reassign_plan import moved_partitions
    from ottla.cli.reassign_plan import plan_assignment as make_plan
    from ottla.client import Admin

    with connect_cluster() as client:
        admin = Admin(client)
        present = _present_replicas(admin, topics)
        racks = {node.node_id: node.rack for node in admin.describe_cluster().nodes}
    if allowed is not None:
        racks = _choose_brokers(racks, allowed)
    try:
        changes = moved_partitions(present, make_plan(present, racks, factor))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not changes:
        print_note("nothing to move: every partition is where it should be")
    if output == "table":
        rows = [(tp.topic, tp.partition, _ids_text(present[tp]), _ids_text(new)) for tp, new in changes.items()]
        write_table(("TOPIC", "PARTITION", "NOW", "PLANNED"), rows)
    elif changes:
        write_line(assignment_text(changes))


@reassign.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--throttle", type=click.IntRange(min=1), metavar="BYTES/S", help="Limit of replication traffic per broker."
)
@click.option("--wait", is_flag=True, help="Show the progress; return when all is moved, or when --timeout has passed.")
@output_option("table", "json", "jsonl")
@common_options
def run(file: str, throttle: int | None, wait: bool, output: str) -> None:
    """Carry out a plan. Prints the present assignment to standard error, as a plan to go back."""
    from ottla.client import Admin

    targets = read_assignment(file)
    with connect_cluster() as client:
        admin = Admin(client)
        present = _present_replicas(admin, sorted({tp.topic for tp in targets}))
        before = {tp: present[tp] for tp in targets if tp in present}
        print_note(f"the present assignment, to go back:\n{assignment_text(before)}")
        # The throttle must be set before the first move begins, and outlive the last one.
        if throttle is not None:
            set_throttle(admin, before, targets, throttle)
        results = admin.alter_partition_reassignments(targets)
        begun = [tp for tp, error in results.items() if error is None]
        if wait and begun:
            _wait_moved(admin, begun)
            if throttle is not None:
                touched = {node for each in (before, targets) for nodes in each.values() for node in nodes}
                clear_throttle(admin, sorted({tp.topic for tp in targets}), touched)
        elif throttle is not None:
            print_note("the throttle is removed by `ottla reassign status FILE`, once everything is moved")
    write_results(output, results, "is moved" if wait else "is being moved")


def _wait_moved(admin: Admin, partitions: Sequence[TopicPartition]) -> None:
    """Block until none of these partitions is being moved. Raises DeadlineError."""
    from ottla.client import Deadline, DeadlineError

    deadline = Deadline.after_ms(int(option_value("timeout_s", 3600.0) * 1000))
    last = -1
    while left := len(admin.list_partition_reassignments(partitions)):
        if left != last:
            print_note(f"{len(partitions) - left} of {len(partitions)} partitions are moved")
            last = left
        if deadline.remaining_ms() <= 0:
            raise DeadlineError(f"{left} partitions are still being moved; `ottla reassign status` shows the progress")
        time.sleep(_LOOK_S)


@reassign.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@output_option("table", "json", "jsonl")
@common_options
def status(file: str | None, output: str) -> None:
    """Show what is being moved. With a plan's FILE: its progress; when it is done, its throttle is removed."""
    from ottla.client import Admin

    targets = None if file is None else read_assignment(file)
    with connect_cluster() as client:
        admin = Admin(client)
        moving = admin.list_partition_reassignments(targets)
        present = {} if targets is None else _present_replicas(admin, sorted({tp.topic for tp in targets}))
        if targets is not None and not moving:
            clear_throttle(admin, sorted({tp.topic for tp in targets}))
    documents = [_moving_document(tp, each) for tp, each in moving.items()]
    for tp in targets or ():
        if tp not in moving:
            done = list(present.get(tp, ())) == list((targets or {})[tp])
            documents.append({**_partition_fields(tp), "state": "done" if done else "not as planned"})
    if output == "json":
        write_json(documents)
    elif output == "jsonl":
        write_jsonl(documents)
    else:
        keys = ("topic", "partition", "state", "replicas", "adding", "removing")
        write_table([key.upper() for key in keys], [[_cell_text(each.get(key)) for key in keys] for each in documents])


@reassign.command()
@click.argument("partitions", nargs=-1, metavar="[TOPIC:PARTITION]…")
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="Cancel all partitions of this plan.")
@click.option("--all", "everything", is_flag=True, help="Cancel everything that is being moved.")
@output_option("table", "json", "jsonl")
@common_options
def cancel(partitions: tuple[str, ...], file: str | None, everything: bool, output: str) -> None:
    """Cancel moves: replicas that were being added are removed, those that were being removed stay."""
    from ottla.client import Admin

    if [bool(partitions), file is not None, everything].count(True) != 1:
        raise click.UsageError("name partitions (TOPIC:PARTITION), or a plan with --file, or add --all")
    named = [parse_partition(word) for word in partitions] if file is None else list(read_assignment(file))
    with connect_cluster() as client:
        admin = Admin(client)
        moving = admin.list_partition_reassignments(None if everything else named)
        wanted = list(moving) if everything or file is not None else named
        results = admin.alter_partition_reassignments(dict.fromkeys(wanted)) if wanted else {}
        clear_throttle(admin, sorted({tp.topic for tp in wanted}))
    if not wanted:
        print_note("nothing is being moved")
    write_results(output, results, "is not moved any more")


# -- words and values ------------------------------------------------------------------------------------------------


def _present_replicas(admin: Admin, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """Replicas of every partition of these topics (none named: of all). Raises RefusedError for a missing topic."""
    from ottla.client import TopicView
    from ottla.types import TopicPartition

    found: list[TopicView] = []
    if topics:
        for view in admin.describe_topics(topics).values():
            if not isinstance(view, TopicView):
                raise view
            found.append(view)
    else:
        found = admin.list_topics(internal=True)
    return {TopicPartition(t.name, p.partition): p.replicas for t in found for p in t.partitions.values()}


def _choose_brokers(racks: Mapping[int, str | None], words: str) -> dict[int, str | None]:
    try:
        wanted = [int(word) for word in words.split(",")]
    except ValueError:
        raise click.UsageError(f"{words!r} is not a list of broker ids") from None
    missing = [node for node in wanted if node not in racks]
    if missing:
        raise click.UsageError(f"broker {missing[0]} is not alive; the live ones are {_ids_text(sorted(racks))}")
    return {node: racks[node] for node in wanted}


def _ids_text(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))


def _partition_fields(tp: TopicPartition) -> dict[str, Json]:
    return {"topic": tp.topic, "partition": tp.partition}


def _moving_document(tp: TopicPartition, each: Reassignment) -> dict[str, Json]:
    lists = {"replicas": list(each.replicas), "adding": list(each.adding), "removing": list(each.removing)}
    return {**_partition_fields(tp), "state": "moving", **lists}


def _cell_text(value: Json) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value
