"""kafka-reassign-partitions: move partitions to other brokers and log directories.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.partitions import Reassignment
from ottla.client.admin.types import Replica
from ottla.client.errors import ClientError, RefusedError
from ottla.client.metadata import TopicView
from ottla.errors import ErrorCode
from ottla.kafka_tools.connection import open_cluster, read_file
from ottla.kafka_tools.java_errors import EXECUTION, error_message, java_class
from ottla.kafka_tools.options import (
    COMMAND_CONFIG,
    ZOOKEEPER,
    ZOOKEEPER_OPTION,
    Options,
    Tool,
    ToolError,
    WordsReport,
    WrongUsage,
    flag,
    value,
)
from ottla.kafka_tools.tools.reassignment.log_dir_moves import (
    find_places,
    move_text,
    sorted_replicas,
    start_moves,
)
from ottla.kafka_tools.tools.reassignment.plan_files import (
    FAILED,
    Plan,
    check_plan,
    check_topics,
    parse_brokers,
    parse_plan,
    parse_topics,
    plan_text,
)
from ottla.kafka_tools.tools.reassignment.throttles import (
    Move,
    clear_throttles,
    set_log_dir_throttle,
    set_replication_throttle,
)
from ottla.types import TopicPartition

_Replicas = Mapping[TopicPartition, Sequence[int]]
_START_MS: Final = 10_000
_SERVERS: Final = ("bootstrap-server", "bootstrap-controller", ZOOKEEPER)
_BOTH: Final = (*_SERVERS, "command-config")
_ALLOWED: Final = {
    "generate": (*_BOTH, "topics-to-move-json-file", "broker-list", "disable-rack-aware"),
    "execute": (
        *_BOTH, "reassignment-json-file", "additional", "throttle", "replica-alter-log-dirs-throttle", "timeout",
        "disallow-replication-factor-change",
    ),
    "verify": (*_BOTH, "reassignment-json-file", "preserve-throttles"),
    "cancel": (*_BOTH, "reassignment-json-file", "preserve-throttles", "timeout"),
    "list": _BOTH,
}  # fmt: skip
"""The options of each action."""
_REQUIRED: Final = {
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",),
    "verify": ("reassignment-json-file",),
    "cancel": ("reassignment-json-file",),
    "list": (),
}  # fmt: skip


def run_reassign_partitions(options: Options) -> int:
    """Run the action that the options name. Returns the exit code."""
    action = _checked_action(options)
    # --timeout is that of moves between log directories; other tools have it for requests.
    given = {name: found for name, found in options.given.items() if name not in {"broker-list", "timeout"}}
    with open_cluster(options._replace(given=given)) as cluster:
        return _ACTIONS[action](Admin(cluster), options) or 0


def _checked_action(options: Options) -> str:
    actions = [name for name in _ALLOWED if options.has(name)]
    if len(actions) != 1:
        listed = ", ".join(f"--{name}" for name in _ALLOWED)
        raise WrongUsage(f"Command must include exactly one action: {listed}")
    action = actions[0]
    servers = [name for name in _SERVERS if options.has(name)]
    if not servers:
        raise WrongUsage("Please specify either --bootstrap-server or --bootstrap-controller")
    if len(servers) > 1:
        raise WrongUsage(f"Please don't specify both --{servers[0]} and --{servers[1]}")
    for name in _REQUIRED[action]:
        if not options.has(name):
            raise WrongUsage(f'Missing required argument "[{name}]"')
    for name in options.given:
        if name != action and name not in _ALLOWED[action]:
            raise WrongUsage(f'Option "[{name}]" can\'t be used with action "[{action}]"')
    return action


def _read_plan(options: Options) -> Plan:
    return parse_plan(_read_json(options, "reassignment-json-file"))


def _read_json(options: Options, name: str) -> str:
    path = options.value_of(name)
    try:
        return read_file(path)
    except ToolError as error:
        if error.java_class.endswith("FileNotFoundException"):
            raise ToolError(f"Unable to read file {path}", "java.io.IOException") from None
        raise


# -- actions ---------------------------------------------------------------------------------------------------------


def _propose_plan(admin: Admin, options: Options) -> None:
    from ottla.cli.reassign_plan import plan_assignment

    # 1. Both lists are read and checked before the cluster is asked, in the order of Kafka's tool.
    topics = parse_topics(_read_json(options, "topics-to-move-json-file"))
    brokers = parse_brokers(options.value_of("broker-list"))
    check_topics(topics)
    present = {
        TopicPartition(name, number): view.replicas
        for name, topic in _views(admin, topics).items()
        for number, view in topic.partitions.items()
    }
    # 2. Brokers of the list that are not alive are passed over, as in Kafka.
    racks = _racks(admin, brokers, ignored=options.has("disable-rack-aware"))
    most = max((len(replicas) for replicas in present.values()), default=0)
    if most > len(racks):
        message = (
            f"The target replication factor of {most} cannot be reached because only {len(racks)} broker(s) are "
            "registered or some brokers have all their log directories cordoned."
            if racks
            else "All brokers are currently fenced, or have all their log directories cordoned."
        )
        raise ToolError(message, java_class(ErrorCode.INVALID_REPLICATION_FACTOR))
    print(f"Current partition replica assignment\n{_present_text(admin, present)}\n")
    print(f"Proposed partition reassignment configuration\n{plan_text(plan_assignment(present, racks, None), {})}")


def _racks(admin: Admin, brokers: Sequence[int], *, ignored: bool) -> dict[int, str | None]:
    """The racks of those of the brokers that are alive. Raises ToolError if only some have one."""
    nodes = {node.node_id: node.rack for node in admin.describe_cluster().nodes if node.node_id in brokers}
    if ignored:
        return dict.fromkeys(nodes)
    if len({rack is None for rack in nodes.values()}) > 1:
        raise ToolError(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information.",
            "org.apache.kafka.tools.AdminOperationException",
        )
    return nodes


def _start_plan(admin: Admin, options: Options) -> int:
    # Read before anything is asked of the cluster: a wrong option must change nothing.
    rate, dir_rate = options.number_of("throttle", -1), options.number_of("replica-alter-log-dirs-throttle", -1)
    timeout_ms = options.number_of("timeout", _START_MS)
    plan = _read_plan(options)
    check_plan(plan)
    # Two plans at once would share the throttles, and the first that is done would remove them.
    moving = admin.list_partition_reassignments()
    if moving and not options.has("additional"):
        print(
            "Cannot execute because there is an existing partition assignment.  Use --additional to override this and "
            "create a new partition assignment in addition to the existing one. The --additional flag can also be "
            "used to change the throttle by resubmitting the current reassignment."
        )
        return 1
    _check_brokers(admin, plan)
    # The way back is printed before anything is changed.
    present = _present_replicas(admin, plan)
    print(f"Current partition replica assignment\n\n{_present_text(admin, present)}\n")
    print("Save this to use as the --reassignment-json-file option during rollback", flush=True)
    _set_throttles(admin, plan, find_moves(plan, present, moving), rate, dir_rate)
    results = admin.alter_partition_reassignments(
        plan.targets, allow_replication_factor_change=not options.has("disallow-replication-factor-change")
    )
    if _print_errors("Error reassigning partition(s):", results):
        return 1
    print(f"Successfully started partition {_counted(plan.targets)} for {_joined(plan.targets)}", flush=True)
    # After the reassignment: a broker may have to create the replica first.
    start_moves(admin, sorted_replicas(plan.log_dirs), timeout_ms)
    return 0


def _check_brokers(admin: Admin, plan: Plan) -> None:
    live = {node.node_id for node in admin.describe_cluster().nodes}
    for node in sorted({node for row in plan.rows for node in row.replicas}):
        if node not in live:
            raise ToolError(f"Unknown broker id {node}", FAILED)


def find_moves(
    plan: Plan, present: _Replicas, moving: Mapping[TopicPartition, Reassignment]
) -> dict[TopicPartition, Move]:
    """From where to where each partition is copied: of the plan, and of those that are being moved already."""
    moves = {}
    # 1. What is moved already keeps its throttle: the lists of a topic are replaced as a whole.
    for tp, each in moving.items():
        sources = frozenset(each.replicas) - frozenset(each.adding)
        moves[tp] = Move(sources, frozenset(each.adding))
    # 2. The plan takes the place of a move, whose brokers are read from until it is done.
    for tp, nodes in plan.targets.items():
        ongoing = moves.get(tp)
        sources = ongoing.sources if ongoing else frozenset(present[tp])
        moves[tp] = Move(sources, frozenset(nodes) - sources)
    return moves


def _set_throttles(admin: Admin, plan: Plan, moves: Mapping[TopicPartition, Move], rate: int, dir_rate: int) -> None:
    if rate < 0 and dir_rate < 0:
        return
    print(
        "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is "
        "removed."
    )
    # Before the first move begins.
    if rate >= 0:
        set_replication_throttle(admin, moves, rate)
        print(f"The inter-broker throttle limit was set to {rate} B/s", flush=True)
    if dir_rate >= 0:
        set_log_dir_throttle(admin, {replica.node_id for replica in plan.log_dirs}, dir_rate)
        print(f"The replica-alter-dir throttle limit was set to {dir_rate} B/s", flush=True)


def _verify_plan(admin: Admin, options: Options) -> None:
    plan = _read_plan(options)
    moving = admin.list_partition_reassignments()
    present = _known_replicas(admin, plan)
    found = find_places(admin, plan.log_dirs)
    places = {replica: found.get(replica) for replica in sorted_replicas(plan.log_dirs)}
    print("Status of partition reassignment:")
    for tp, nodes in plan.targets.items():
        print(_state_text(tp, nodes, present.get(tp, ()), moving=tp in moving))
    print("\n".join(move_text(replica, place, plan.log_dirs[replica]) for replica, place in places.items()), flush=True)
    # Any move, also of other topics: the rates of a broker count for all of them.
    ongoing = any(place is None or place.future or not place.present for place in places.values())
    if not moving and not ongoing and not options.has("preserve-throttles"):
        _clear_throttles(admin, plan)


def _state_text(tp: TopicPartition, wanted: Sequence[int], found: Sequence[int], *, moving: bool) -> str:
    if moving:
        return f"Reassignment of partition {tp} is still in progress."
    if list(wanted) == list(found):
        return f"Reassignment of partition {tp} is completed."
    return (
        f"There is no active reassignment of partition {tp}, but replica set is {_joined(found)} rather than "
        f"{_joined(wanted)}."
    )


def _cancel_plan(admin: Admin, options: Options) -> int:
    timeout_ms = options.number_of("timeout", _START_MS)
    plan = _read_plan(options)
    moving = sorted(admin.list_partition_reassignments(plan.targets)) if plan.rows else []
    if not moving:
        print("None of the specified partition reassignments are active.", flush=True)
    else:
        results = admin.alter_partition_reassignments(dict.fromkeys(moving))
        if _print_errors(f"Error cancelling partition {_counted(moving)} for:", results):
            return 1
        print(f"Successfully cancelled partition {_counted(moving)} for: {_joined(moving)}", flush=True)
    places = find_places(admin, plan.log_dirs)
    # A move ends when the replica is "moved" to where it is.
    back = {replica: place.present for replica, place in places.items() if place.future == plan.log_dirs[replica]}
    if back:
        start_moves(admin, sorted_replicas(back), timeout_ms)
    else:
        # Without the end of the line, as Kafka's tool prints it.
        print("None of the specified partition moves are active.", end="", flush=True)
    if not options.has("preserve-throttles"):
        _clear_throttles(admin, plan)
    return 0


def _print_moving(admin: Admin, _options: Options) -> None:
    moving = admin.list_partition_reassignments()
    if not moving:
        print("No partition reassignments found.")
        return
    print("Current partition reassignments:")
    for tp, each in sorted(moving.items(), key=lambda item: item[0]):
        parts = [f"{tp}: replicas: {_joined(each.replicas)}."]
        parts += [f"adding: {_joined(each.adding)}."] if each.adding else []
        parts += [f"removing: {_joined(each.removing)}."] if each.removing else []
        print(" ".join(parts))


_ACTIONS: Final[Mapping[str, Callable[[Admin, Options], int | None]]] = {
    "generate": _propose_plan, "execute": _start_plan, "verify": _verify_plan, "cancel": _cancel_plan,
    "list": _print_moving,
}  # fmt: skip


# -- what the cluster has --------------------------------------------------------------------------------------------


def _views(admin: Admin, topics: Sequence[str]) -> dict[str, TopicView]:
    """The topics. Raises ToolError for one that is not there."""
    found = {}
    for name, view in (admin.describe_topics(topics) if topics else {}).items():
        if not isinstance(view, TopicView):
            raise _missing(view, f"Topic {name} not found.")
        found[name] = view
    return found


def _missing(error: ClientError, message: str) -> Exception:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(error, RefusedError) and error.code is code:
        return ToolError(f"{java_class(code)}: {message}", EXECUTION)
    return error


def _present_replicas(admin: Admin, plan: Plan) -> dict[TopicPartition, tuple[int, ...]]:
    """Raises ToolError for a topic or partition that is not there."""
    found = {}
    views = _views(admin, sorted({row.tp.topic for row in plan.rows}))
    for tp in plan.targets:
        view = views[tp.topic].partitions.get(tp.partition)
        if view is None:
            error = RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(tp))
            raise _missing(error, f"Unable to find partition: {tp}")
        found[tp] = tuple(view.replicas)
    return found


def _known_replicas(admin: Admin, plan: Plan) -> dict[TopicPartition, tuple[int, ...]]:
    """Without those of topics that are not there."""
    topics = sorted({row.tp.topic for row in plan.rows})
    views = admin.describe_topics(topics) if topics else {}
    return {
        TopicPartition(name, number): tuple(part.replicas)
        for name, view in views.items()
        if isinstance(view, TopicView)
        for number, part in view.partitions.items()
    }


def _present_text(admin: Admin, present: _Replicas) -> str:
    replicas = {Replica(tp, node): "" for tp, nodes in present.items() for node in nodes}
    places = find_places(admin, replicas)
    return plan_text(present, {replica: place.present for replica, place in places.items() if place.present})


def _clear_throttles(admin: Admin, plan: Plan) -> None:
    nodes = {node for row in plan.rows for node in row.replicas}
    clear_throttles(admin, nodes, {row.tp.topic for row in plan.rows})


def _print_errors(head: str, results: Mapping[TopicPartition, ClientError | None]) -> bool:
    errors = [f"{tp}: {error_message(error)}" for tp, error in sorted(results.items()) if error is not None]
    if errors:
        print("\n".join([head, *errors]))
    return bool(errors)


def _counted(values: Sequence[object] | _Replicas) -> str:
    return "reassignment" if len(values) == 1 else "reassignments"


def _joined(values: Sequence[object] | _Replicas) -> str:
    return ",".join(map(str, values))


TOOL: Final = Tool(
    "This tool helps to move topic partitions between replicas.",
    (
        value("bootstrap-server", "The server(s) to use for bootstrapping."),
        value("bootstrap-controller", "The same, for --cancel and --list."),
        *ZOOKEEPER_OPTION,
        *COMMAND_CONFIG,
        flag("generate", "Generate a candidate partition reassignment configuration; it is not executed."),
        flag("execute", "Kick off the reassignment as specified by the --reassignment-json-file option."),
        flag(
            "verify",
            "Verify if the reassignment completed as specified by the --reassignment-json-file option. When it has, "
            "the throttles are removed.",
        ),
        flag("cancel", "Cancel an active reassignment."),
        flag("list", "List all active partition reassignments."),
        flag("additional", "Execute this reassignment in addition to ongoing ones; also to change throttles."),
        flag("preserve-throttles", "Do not modify broker or topic throttles."),
        flag("disable-rack-aware", "Disable rack aware replica assignment."),
        flag("disallow-replication-factor-change", "Refuse a reassignment that changes the replication factor."),
        value("reassignment-json-file", "The JSON file with the partition reassignment configuration."),
        value("topics-to-move-json-file", 'The topics to generate for: {"topics":[{"topic":"foo"}],"version":1}'),
        value("broker-list", "The brokers to which the partitions are moved: 0,1,2."),
        value("throttle", "Bytes per second of the movement of partitions between brokers."),
        value("replica-alter-log-dirs-throttle", "The same, between log directories of a broker."),
        value("timeout", "The maximum time in ms to wait for log directory moves to begin. (default: 10000)"),
    ),
    run_reassign_partitions,
    prefix="Error: ",
    to_stdout=True,
    all_to_stdout=True,
    wrong_words=WordsReport.CLASS_ONLY,
    wrap_refusals=True,
)
