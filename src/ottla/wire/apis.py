"""Kafka's APIs: their keys, messages and versions, derived from the declarations.

Zone: pure. The handlers of a broker decide which of them it offers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from ottla.wire import messages
from ottla.wire.codec import warm_codec
from ottla.wire.schema import LATEST, Message


class ApiKey(IntEnum):
    """API keys of the protocol: int16 on the wire. Keys of Raft quorums and of streams groups are left out."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class Api(NamedTuple):
    """One API: a request, its response, and the versions for which both are declared."""

    key: ApiKey
    name: str
    """Kafka's name, such as "DescribeTopicPartitions"."""
    request: type[Message]
    response: type[Message]
    min_version: int
    max_version: int
    flexible_from: int
    """The first version with compact lengths and tagged fields, in headers too; above every version if none has."""


def _derive_apis() -> Mapping[int, Api]:
    """Pair the declared messages by key."""
    table: dict[int, Api] = {}
    for key in ApiKey:
        name = "".join(word.capitalize() for word in key.name.split("_"))
        request: type[Message] = getattr(messages, f"{name}Request")
        response: type[Message] = getattr(messages, f"{name}Response")
        assert request.API_KEY == response.API_KEY == key, name
        versions, flexible = request.VERSIONS, request.FLEXIBLE
        first = flexible.start if flexible else LATEST + 1
        table[key] = Api(key, name, request, response, versions.start, versions.stop - 1, first)
    return MappingProxyType(table)


API_TABLE: Final = _derive_apis()
"""Every API by its key."""


def warm_up(served: Iterable[tuple[int, int, int]], *, client: bool = False) -> Iterator[ApiKey]:
    """Compile the codecs of (key, first, last version) ahead of use; yields after every pair of functions (≈ 0.5 ms).

    A broker decodes requests and encodes responses, a client the other way round. Run the iterator to its end at start,
    or step by step in idle time. A codec that is not compiled yet is compiled at its first use.
    """
    for key, first, last in served:
        api = API_TABLE[key]
        for version in range(max(first, api.min_version), min(last, api.max_version) + 1):
            warm_codec(api.request, version, decoder=not client, encoder=client)
            warm_codec(api.response, version, decoder=client, encoder=not client)
            yield api.key
