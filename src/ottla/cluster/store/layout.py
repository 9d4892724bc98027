"""Kafka's nodes in the metadata store: their paths and their JSON, identical to Kafka's to the byte.

Zone: pure. Text and values only. Keys are written in Kafka's order. Any order is read, because operators also write
these nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ottla.types import ZERO_UUID, Endpoint, TopicPartition, uuid_from_text, uuid_to_text

BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
CLUSTER_ID: Final = "/cluster/id"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
DELETE_TOPICS: Final = "/admin/delete_topics"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
DEFAULT_ENTITY: Final = "<default>"
_HOST: Final = "ottla.host"
"""Ottla's own key: Kafka's "host" repeats an endpoint's address."""
_BLANK: Final = "ottla.blank"
_INCOMPLETE: Final = "ottla.incomplete"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
ISR_CHANGES: Final = "/isr_change_notification"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
FEATURE: Final = "/feature"

PERSISTENT: Final = (
    "/admin",
    DELETE_TOPICS,
    "/brokers",
    BROKER_IDS,
    "/brokers/seqid",
    TOPICS,
    "/cluster",
    "/config",
    BROKER_CONFIGS,
    "/config/changes",
    "/config/clients",
    "/config/ips",
    TOPIC_CONFIGS,
    "/config/users",
    "/consumers",
    "/isr_change_notification",
    PRODUCER_ID_BLOCK,
    "/log_dir_event_notification",
)
"""Nodes that every broker creates if they are missing, parents first."""


class BrokenNode(Exception):
    """The content of a node cannot be decoded; the message names the node and the reason."""


class TopicNode(NamedTuple):
    """/brokers/topics/<topic>, version 3. Replicas by partition."""

    topic_id: bytes
    assignment: Mapping[int, tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]]
    removing: Mapping[int, tuple[int, ...]]


class StateNode(NamedTuple):
    """/brokers/topics/<topic>/partitions/<partition>/state, version 1."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int


class BrokerNode(NamedTuple):
    """/brokers/ids/<id>, version 5."""

    endpoints: tuple[Endpoint, ...]
    rack: str | None
    host: str | None = None
    """The machine of the broker, if the operator named it (`ottla.host`): brokers of one machine fail together."""
    is_blank: bool = False
    """A log directory of the broker is new: the records of replicas that were there before are lost."""
    incomplete: tuple[TopicPartition, ...] = ()
    """Partitions whose logs lack records that they had before the restart."""
    features: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    """The lowest and highest level of each feature that the broker follows; only written."""


class BlockNode(NamedTuple):
    """/latest_producer_id_block, version 1: producer ids from `start` to `end`, both included."""

    broker: int
    start: int
    end: int


def broker_path(node_id: int) -> str:
    """Path of a broker's registration."""
    return f"{BROKER_IDS}/{node_id}"


def topic_path(topic: str) -> str:
    """Path of a topic's assignment."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """Path of the parent of a topic's partitions."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """Path of the parent of a partition's state."""
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    """Path of a partition's state."""
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    """Path of a topic's settings."""
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(entity: int | None) -> str:
    """Path of the dynamic settings of a broker, or of all brokers (None)."""
    return f"{BROKER_CONFIGS}/{DEFAULT_ENTITY if entity is None else entity}"


# -- writing ---------------------------------------------------------------------------------------------------------


def _encode_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def encode_topic(node: TopicNode) -> bytes:
    """Encode an assignment with the id and the reassignment, in the order of the partitions."""
    return _encode_json(
        {
            "partitions": _by_partition(node.assignment),
            "topic_id": uuid_to_text(node.topic_id),
            "adding_replicas": _by_partition(node.adding),
            "removing_replicas": _by_partition(node.removing),
            "version": 3,
        }
    )


def _by_partition(replicas: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(partition): list(replicas[partition]) for partition in sorted(replicas)}


def encode_state(node: StateNode) -> bytes:
    """Encode a partition's state."""
    return _encode_json(
        {
            "controller_epoch": node.controller_epoch,
            "leader": node.leader,
            "version": 1,
            "leader_epoch": node.leader_epoch,
            "isr": list(node.isr),
        }
    )


def encode_broker(node: BrokerNode, wall_ms: int) -> bytes:
    """Encode a registration. `host` and `port` repeat the first PLAINTEXT endpoint, for readers of version 1."""
    plain = next((endpoint for endpoint in node.endpoints if endpoint.protocol == "PLAINTEXT"), None)
    content: dict[str, Any] = {
        "features": dict(node.features),
        "listener_security_protocol_map": {endpoint.listener: endpoint.protocol for endpoint in node.endpoints},
        "endpoints": [
            f"{endpoint.listener}://{_bracket_ipv6(endpoint.host)}:{endpoint.port}" for endpoint in node.endpoints
        ],
    }
    if node.rack is not None:
        content["rack"] = node.rack
    if node.host is not None:
        content[_HOST] = node.host
    if node.is_blank:
        content[_BLANK] = True
    if node.incomplete:
        content[_INCOMPLETE] = _by_topic(node.incomplete)
    content |= {
        "jmx_port": -1,
        "port": -1 if plain is None else plain.port,
        "host": None if plain is None else plain.host,
        "version": 5,
        "timestamp": str(wall_ms),
    }
    return _encode_json(content)


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        numbers.setdefault(tp.topic, []).append(tp.partition)
    return numbers


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def encode_config(config: Mapping[str, str]) -> bytes:
    """Encode the settings of a topic, a broker or a user."""
    return _encode_json({"version": 1, "config": dict(config)})


def encode_cluster_id(cluster_id: str) -> bytes:
    """Encode the cluster's id."""
    # The version is text here, and a number in the other nodes, as in Kafka.
    return _encode_json({"version": "1", "id": cluster_id})


def encode_controller(node_id: int, wall_ms: int) -> bytes:
    """Encode the controller's number, in the form of the last Kafka versions with ZooKeeper."""
    return _encode_json({"version": 2, "brokerid": node_id, "timestamp": str(wall_ms), "kraftControllerEpoch": -1})


def encode_feature() -> bytes:
    """Encode /feature (KIP-584): no feature is finalized; status 1: features may be."""
    return _encode_json({"features": {}, "version": 1, "status": 1})


def encode_reassignment(targets: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """Encode /admin/reassign_partitions: the replicas that partitions shall have."""
    partitions = [
        {"topic": tp.topic, "partition": tp.partition, "replicas": list(replicas)} for tp, replicas in targets.items()
    ]
    return _encode_json({"version": 1, "partitions": partitions})


def encode_log_dir_event(broker: int) -> bytes:
    """Encode a child of /log_dir_event_notification: a log directory of that broker has failed."""
    return _encode_json({"version": 1, "broker": broker, "event": 1})


def encode_block(node: BlockNode) -> bytes:
    """Encode the last allocated block of producer ids."""
    return _encode_json(
        {"version": 1, "broker": node.broker, "block_start": str(node.start), "block_end": str(node.end)}
    )


# -- reading ---------------------------------------------------------------------------------------------------------


def _decode_object(path: str, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BrokenNode(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BrokenNode(f"{path} is not a JSON object")
    return content


def decode_topic(path: str, data: bytes) -> TopicNode:
    """Decode an assignment of any version; those before 3 have no topic id (ZERO_UUID). Raises BrokenNode."""
    content = _decode_object(path, data)
    topic_id = ZERO_UUID
    if "topic_id" in content:
        try:
            topic_id = uuid_from_text(str(content["topic_id"]))
        except ValueError as error:
            raise BrokenNode(f"{path}: {error}") from None
    return TopicNode(
        topic_id,
        _decode_replicas(path, content.get("partitions")),
        _decode_replicas(path, content.get("adding_replicas", {})),
        _decode_replicas(path, content.get("removing_replicas", {})),
    )


def _decode_replicas(path: str, value: object) -> dict[int, tuple[int, ...]]:
    if not isinstance(value, dict):
        raise BrokenNode(f"{path} has no map of partitions to replicas")
    try:
        found = {int(partition): tuple(map(int, replicas)) for partition, replicas in value.items()}
    except (TypeError, ValueError):
        raise BrokenNode(f"{path} maps partitions to values that are not lists of broker numbers") from None
    return dict(sorted(found.items()))


def decode_state(path: str, data: bytes) -> StateNode:
    """Decode a partition's state. Raises BrokenNode."""
    content = _decode_object(path, data)
    try:
        return StateNode(
            int(content["leader"]),
            int(content["leader_epoch"]),
            tuple(map(int, content["isr"])),
            int(content.get("controller_epoch", 0)),
        )
    except (KeyError, TypeError, ValueError):
        raise BrokenNode(f"{path} lacks leader, leader_epoch or isr") from None


def decode_broker(path: str, data: bytes) -> BrokerNode:
    """Decode a registration of versions 2 to 5, which have endpoints. Raises BrokenNode."""
    content = _decode_object(path, data)
    protocols = content.get("listener_security_protocol_map", {})
    rack, host = content.get("rack"), content.get(_HOST)
    try:
        endpoints = tuple(_decode_endpoint(str(text), protocols) for text in content["endpoints"])
        numbers = content.get(_INCOMPLETE, {}).items()
        incomplete = tuple(TopicPartition(str(topic), int(each)) for topic, found in numbers for each in found)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BrokenNode(f"{path} lacks endpoints of the form NAME://host:port") from None
    rack, host = (None if text is None else str(text) for text in (rack, host))
    return BrokerNode(endpoints, rack, host, content.get(_BLANK) is True, incomplete)


def _decode_endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    name, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    return Endpoint(name, host.strip("[]"), int(port), str(protocols.get(name, name)))


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """Decode settings, in their order. Raises BrokenNode."""
    config = _decode_object(path, data).get("config")
    if not isinstance(config, dict):
        raise BrokenNode(f"{path} has no config")
    return {str(name): str(value) for name, value in config.items()}


def decode_cluster_id(path: str, data: bytes) -> str:
    """Decode the cluster's id. Raises BrokenNode."""
    cluster_id = _decode_object(path, data).get("id")
    if not isinstance(cluster_id, str) or not cluster_id:
        raise BrokenNode(f"{path} has no id")
    return cluster_id


def decode_block(path: str, data: bytes) -> BlockNode:
    """Decode a block of producer ids. Raises BrokenNode."""
    content = _decode_object(path, data)
    try:
        return BlockNode(int(content["broker"]), int(content["block_start"]), int(content["block_end"]))
    except (KeyError, TypeError, ValueError):
        raise BrokenNode(f"{path} lacks broker, block_start or block_end") from None


def decode_epoch(path: str, data: bytes) -> int:
    """Decode /controller_epoch, a bare number. Raises BrokenNode."""
    # An int32 has at most ten digits.
    if not data.isdigit() or len(data) > 10:
        raise BrokenNode(f"{path} is not a number")
    return int(data)


def decode_controller(path: str, data: bytes) -> int:
    """Decode the controller's number, from any version of the node. Raises BrokenNode if it names no broker."""
    try:
        found = int(_decode_object(path, data)["brokerid"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BrokenNode(f"{path} lacks brokerid") from None
    if not 0 <= found < 1 << 31:
        raise BrokenNode(f"{path} names broker {found}, which cannot exist")
    return found


def decode_reassignment(path: str, data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Decode target replicas by partition. Raises BrokenNode."""
    found = {}
    for tp, entry in _partition_entries(path, data):
        try:
            found[tp] = tuple(map(int, entry["replicas"]))
        except (KeyError, TypeError, ValueError):
            raise BrokenNode(f"{path} has no list of replicas for {tp}") from None
    return found


def decode_partitions(path: str, data: bytes) -> list[TopicPartition]:
    """Decode a list of partitions (preferred elections, ISR changes). Raises BrokenNode."""
    return [tp for tp, _ in _partition_entries(path, data)]


def _partition_entries(path: str, data: bytes) -> list[tuple[TopicPartition, dict[str, Any]]]:
    entries = _decode_object(path, data).get("partitions")
    if not isinstance(entries, list):
        raise BrokenNode(f"{path} has no list of partitions")
    try:
        return [(TopicPartition(str(entry["topic"]), int(entry["partition"])), entry) for entry in entries]
    except (KeyError, TypeError, ValueError):
        raise BrokenNode(f"{path} names partitions without topic or number") from None


def decode_log_dir_event(path: str, data: bytes) -> int:
    """Decode the broker whose log directory has failed. Raises BrokenNode."""
    try:
        return int(_decode_object(path, data)["broker"])
    except (KeyError, TypeError, ValueError):
        raise BrokenNode(f"{path} lacks broker") from None
