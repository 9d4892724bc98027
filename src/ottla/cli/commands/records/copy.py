"""`ottla copy`: the records of a topic into another topic, also of another cluster.

Zone: real. Chooses clusters, topics and positions; `topic_copy` copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from ottla.cli.name_options import complete_topics
from ottla.cli.options import ClientSettings, common_options, connect_cluster, output_option, print_note
from ottla.cli.views.output import write_json, write_table

if TYPE_CHECKING:
    from ottla.cli.moving.copy_positions import CopyPlan
    from ottla.client import Cluster, Consumer, Producer
    from ottla.client.metadata import TopicView

_LARGEST_RECORD: Final = 16 << 20
_NOT_COPIED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Settings of a topic that name brokers."""


@click.command()
@click.argument("source", shell_complete=complete_topics)
@click.argument("target", required=False, shell_complete=complete_topics)
@click.option("--from", "from_", metavar="CLUSTER", help="Read from this context or HOST:PORT, not from that of -b.")
@click.option("--to", metavar="CLUSTER", help="Write to this context or HOST:PORT, not to that of -b.")
@click.option("-g", "--group", metavar="NAME", help="The group of the positions; ottla-copy-SOURCE-TARGET by default.")
@click.option("--follow", is_flag=True, help="Copy new records as well, until Ctrl-C.")
@click.option("--at-least-once", is_flag=True, help="Without transactions: after a failure some are copied again.")
@click.option(
    "--transaction-records", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True, metavar="N",
    help="Commit after this many records, 64 MiB, or a second.",
)  # fmt: skip
@click.option("--no-create", is_flag=True, help="Fail where TARGET does not exist; by default it is created.")
@output_option("table", "json")
@common_options
def copy(
    source: str,
    target: str | None,
    from_: str | None,
    to: str | None,
    group: str | None,
    follow: bool,
    at_least_once: bool,
    transaction_records: int,
    no_create: bool,
    output: str,
) -> None:
    """Copy the records of topic SOURCE to TARGET (the same name by default), each exactly once.

    Keys, values, headers, timestamps and partitions stay as they are. The same command continues a copy that was
    interrupted, and later copies what is new.
    """
    from ottla.cli.clients import make_consumer, make_producer
    from ottla.cli.moving.copy_positions import plan_copy
    from ottla.client.consumer.settings import CONSUMER_KEYS
    from ottla.client.producer.config import PRODUCER_KEYS

    with connect_cluster(side=from_) as reading, connect_cluster(side=to) as writing:
        if not no_create:
            _create_target(reading, writing, source, target or source)
        plan = plan_copy(reading, writing, source, target or source, group)
        fixed: ClientSettings = {} if at_least_once else {"transactional.id": plan.group}
        with (
            make_consumer(_reading_settings(), {"group.id": plan.group}, from_, PRODUCER_KEYS) as consumer,
            make_producer({"max.request.size": _LARGEST_RECORD}, fixed, None, to, CONSUMER_KEYS) as producer,
        ):
            began, reached, count = _run_copy(consumer, producer, writing, plan, transaction_records, follow=follow)
    _write_summary(output, plan, began, reached, count)


def _reading_settings() -> ClientSettings:
    """Records of aborted transactions are not copied; a record that is deleted meanwhile is an error, not a jump."""
    return {
        "isolation.level": "read_committed",
        "auto.offset.reset": "none",
        "enable.auto.commit": False,
        "max.poll.records": 1_000,
    }


def _run_copy(
    consumer: Consumer, producer: Producer, writing: Cluster, plan: CopyPlan, per_transaction: int, *, follow: bool
) -> tuple[dict[int, int], dict[int, int], int]:
    """The positions before and after the copy, and the number of copied records. Raises CommandFailed, ClientError."""
    from ottla.cli.moving.copy_positions import positions_at_target, seek_positions
    from ottla.cli.moving.topic_copy import TopicCopy
    from ottla.cli.views.progress import Progress
    from ottla.client import ClientError

    if producer.config.transactional_id:
        # 1. Initialize: an open transaction of an earlier run ends, and a run elsewhere is fenced. 2. Only then read
        #    the positions.
        producer.init_transactions()
        known = positions_at_target(writing, plan)
    else:
        # At least once: the source's own group has the positions, committed after the records were written.
        found = consumer.committed(plan.source_partitions())
        known = {tp.partition: position.offset for tp, position in found.items() if position is not None}
    began = seek_positions(consumer, plan, known)
    ends = {tp.partition: end for tp, end in consumer.end_offsets(plan.source_partitions()).items()}
    with Progress("copied") as progress:
        run = TopicCopy(consumer, producer, plan, progress, began, per_transaction=per_transaction)
        try:
            run.copy_records(None if follow else ends)
        except KeyboardInterrupt:
            print_note(f"{progress.records:,} records are copied; the same command continues there")
            raise
        except ClientError as error:
            raise _interrupted(error, progress.records) from error
    return began, run.positions, progress.records


def _interrupted(error: Exception, count: int) -> Exception:
    from ottla.cli.explain import exit_code, explain_error
    from ottla.cli.failure import CommandFailed

    return CommandFailed(
        f"{explain_error(error)}. {count:,} records are copied. Correct the cause, then run the same command: it "
        "continues there",
        exit_code=exit_code(error) or 1,
        details={"copied": count},
    )


def _create_target(reading: Cluster, writing: Cluster, source: str, target: str) -> None:
    """Create the target with the partitions and the own settings of the source, if it does not exist."""
    from ottla.client import Admin, NewTopic, RefusedError
    from ottla.client.errors import values_of
    from ottla.errors import ErrorCode

    found = reading.topic(source)
    described = Admin(writing).describe_topics([target])[target]
    # It exists, or it cannot be known: the copy itself will name the error.
    if not isinstance(described, RefusedError) or described.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return
    new = NewTopic(target, max(found.partitions) + 1, -1, _own_settings(reading, found))
    values_of(Admin(writing).create_topics([new]))
    print_note(f"topic {target} created with {new.partitions} partitions")


def _own_settings(reading: Cluster, topic: TopicView) -> dict[str, str]:
    """The settings that the topic itself has, not its broker."""
    from ottla.client import Admin, Resource, ResourceType
    from ottla.client.admin.types import ConfigSource
    from ottla.client.errors import values_of

    resource = Resource(ResourceType.TOPIC, topic.name)
    entries = values_of(Admin(reading).describe_configs([resource]))[resource]
    return {
        each.name: each.value
        for each in entries
        if each.source is ConfigSource.DYNAMIC_TOPIC_CONFIG and each.value is not None and each.name not in _NOT_COPIED
    }


def _write_summary(
    output: str, plan: CopyPlan, began: Mapping[int, int], reached: Mapping[int, int], count: int
) -> None:
    if output == "json":
        rows = [{"partition": n, "from_offset": began[n], "to_offset": reached[n]} for n in plan.partitions]
        write_json(
            {"source": plan.source, "target": plan.target, "group": plan.group, "records": count, "partitions": rows}
        )
    else:
        write_table(
            ("SOURCE", "TARGET", "PARTITION", "FROM-OFFSET", "TO-OFFSET"),
            [(plan.source, plan.target, n, began[n], reached[n]) for n in plan.partitions],
        )
        print_note(f"{count:,} records copied")
