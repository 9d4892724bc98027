"""kafka-run-class: the tools by the names of their Java classes, those of Kafka 4 and those before.

Zone: pure. Raises ToolError for words that name no tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.kafka_tools.options import ToolError

RUN_CLASS: Final = "kafka-run-class"
_NEW: Final = "org.apache.kafka.tools."
CLASSES: Final = {
    f"{_NEW}TopicCommand": "kafka-topics",
    "kafka.admin.TopicCommand": "kafka-topics",
    f"{_NEW}ConsoleProducer": "kafka-console-producer",
    "kafka.tools.ConsoleProducer": "kafka-console-producer",
    f"{_NEW}consumer.ConsoleConsumer": "kafka-console-consumer",
    "kafka.tools.ConsoleConsumer": "kafka-console-consumer",
    f"{_NEW}consumer.group.ConsumerGroupCommand": "kafka-consumer-groups",
    "kafka.admin.ConsumerGroupCommand": "kafka-consumer-groups",
    f"{_NEW}GroupsCommand": "kafka-groups",
    f"{_NEW}consumer.group.ShareGroupCommand": "kafka-share-groups",
    f"{_NEW}ClientMetricsCommand": "kafka-client-metrics",
    f"{_NEW}TransactionsCommand": "kafka-transactions",
    "kafka.admin.ConfigCommand": "kafka-configs",
    f"{_NEW}AclCommand": "kafka-acls",
    "kafka.admin.AclCommand": "kafka-acls",
    f"{_NEW}DelegationTokenCommand": "kafka-delegation-tokens",
    "kafka.admin.DelegationTokenCommand": "kafka-delegation-tokens",
    f"{_NEW}GetOffsetShell": "kafka-get-offsets",
    "kafka.tools.GetOffsetShell": "kafka-get-offsets",
    f"{_NEW}DeleteRecordsCommand": "kafka-delete-records",
    "kafka.admin.DeleteRecordsCommand": "kafka-delete-records",
    f"{_NEW}BrokerApiVersionsCommand": "kafka-broker-api-versions",
    "kafka.admin.BrokerApiVersionsCommand": "kafka-broker-api-versions",
    f"{_NEW}FeatureCommand": "kafka-features",
    "kafka.admin.FeatureCommand": "kafka-features",
    f"{_NEW}ClusterTool": "kafka-cluster",
    "kafka.tools.ClusterTool": "kafka-cluster",
    f"{_NEW}MetadataQuorumCommand": "kafka-metadata-quorum",
    f"{_NEW}LeaderElectionCommand": "kafka-leader-election",
    "kafka.admin.LeaderElectionCommand": "kafka-leader-election",
    f"{_NEW}LogDirsCommand": "kafka-log-dirs",
    "kafka.admin.LogDirsCommand": "kafka-log-dirs",
    f"{_NEW}ReplicaVerificationTool": "kafka-replica-verification",
    "kafka.tools.ReplicaVerificationTool": "kafka-replica-verification",
    f"{_NEW}reassign.ReassignPartitionsCommand": "kafka-reassign-partitions",
    "kafka.admin.ReassignPartitionsCommand": "kafka-reassign-partitions",
    f"{_NEW}DumpLogSegments": "kafka-dump-log",
    "kafka.tools.DumpLogSegments": "kafka-dump-log",
    f"{_NEW}ProducerPerformance": "kafka-producer-perf-test",
    f"{_NEW}ConsumerPerformance": "kafka-consumer-perf-test",
    "kafka.tools.ConsumerPerformance": "kafka-consumer-perf-test",
    f"{_NEW}EndToEndLatency": "kafka-e2e-latency",
    "kafka.tools.EndToEndLatency": "kafka-e2e-latency",
    f"{_NEW}VerifiableProducer": "kafka-verifiable-producer",
    f"{_NEW}VerifiableConsumer": "kafka-verifiable-consumer",
}
"""The tool of each class."""


def find_tool(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The tool that the words of kafka-run-class name, and its own words. Raises ToolError."""
    rest = list(words)
    # Options of the script, which are about the Java process.
    while rest and rest[0] in ("-name", "-loggc"):
        del rest[: 2 if rest[0] == "-name" else 1]
    if not rest:
        raise ToolError(f"USAGE: {RUN_CLASS} [-name servicename] [-loggc] classname [opts]")
    if rest[0] == "-daemon":
        raise ToolError("-daemon is an option of Apache Kafka's script that Ottla's does not have: its tools end")
    name = rest[0]
    if name not in CLASSES:
        raise ToolError(
            f"Error: Could not find or load main class {name}\nCaused by: java.lang.ClassNotFoundException: {name}"
        )
    return CLASSES[name], rest[1:]
