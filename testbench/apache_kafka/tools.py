"""Apache Kafka's command line tools, by their short names."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from ottla.server.embedded import EmbeddedBroker
from testbench.apache_kafka.packages import class_path, home, java

SHORT_RUN = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xlog:disable")
"""JVM options of tools; without the last, Java would print on stdout that an archive does not fit."""

CLASSES = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
}
IN_KAFKA_3 = {
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
}
IN_KAFKA_1 = {
    "kafka-topics": "kafka.admin.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-consumer-groups": "kafka.admin.ConsumerGroupCommand",
    "kafka-reassign-partitions": "kafka.admin.ReassignPartitionsCommand",
    "kafka-preferred-replica-election": "kafka.admin.PreferredReplicaLeaderElectionCommand",
    "kafka-log-dirs": "kafka.admin.LogDirsCommand",
    "kafka-delete-records": "kafka.admin.DeleteRecordsCommand",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "kafka.tools.ConsoleConsumer",
    "kafka-get-offsets": "kafka.tools.GetOffsetShell",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-replica-verification": "kafka.tools.ReplicaVerificationTool",
}
OF_VERSION = {"1": IN_KAFKA_1, "3": IN_KAFKA_3, "4": {}}


def main_class(version: str, name: str) -> str:
    """The Java class of a tool."""
    return OF_VERSION[version.partition(".")[0]].get(name) or CLASSES[name]


def tools_part(version: str) -> str:
    """The part of a version's packages that has its tools."""
    return "old-tools" if version.startswith("1.") else "tools"


def command(version: str, name: str, *arguments: str) -> list[str]:
    """The whole command line of a tool. Raises BenchError when Java or the packages are missing."""
    main = main_class(version, name)
    logging = logging_options(version)
    heap = os.environ.get("KAFKA_HEAP", "512m")
    return [java(), f"-Xmx{heap}", *logging, "-cp", class_path(version, tools_part(version)), main, *arguments]


def logging_options(version: str) -> list[str]:
    """Log settings of tools: only errors, and to stderr, so that stdout has only their output."""
    directory = home(version)
    if not version.startswith("4."):
        file = directory / "tools-log4j.properties"
        text = "log4j.rootLogger=ERROR, E\nlog4j.appender.E=org.apache.log4j.ConsoleAppender\n"
        text += "log4j.appender.E.target=System.err\nlog4j.appender.E.layout=org.apache.log4j.SimpleLayout\n"
        option = f"-Dlog4j.configuration=file:{file}"
    else:
        file = directory / "tools-log4j2.properties"
        text = "status=error\nappender.e.type=Console\nappender.e.name=E\nappender.e.target=SYSTEM_ERR\n"
        text += "appender.e.layout.type=PatternLayout\nrootLogger.level=error\nrootLogger.appenderRef.e.ref=E\n"
        option = f"-Dlog4j2.configurationFile={file}"
    if not file.exists():
        file.write_text(text)
    return [option]


@cache
def class_archive(version: str) -> Path:
    """Classes of one version's tools as Java has loaded them, in a file that a tool maps: it halves the processor time
    in which a tool starts. One is made for each Java, by a tool that lists topics. Java ignores a file that is missing
    or that does not fit its jars."""
    program = Path(java()).resolve()
    digest = hashlib.sha256(f"{program} {program.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    target = home(version) / f"tools-{digest}.jsa"
    if not target.exists():
        with EmbeddedBroker() as broker, tempfile.TemporaryDirectory(dir=target.parent) as directory:
            fresh = Path(directory, "classes")
            java_command, *rest = command(version, "kafka-topics", "--bootstrap-server", broker.bootstrap, "--list")
            words = [java_command, *SHORT_RUN, f"-XX:ArchiveClassesAtExit={fresh}", *rest]
            subprocess.run(words, capture_output=True, check=False, timeout=300)
            if fresh.exists():
                fresh.replace(target)
    return target


def short_command(version: str, name: str, *arguments: str) -> list[str]:
    """The whole command line of a tool, in a JVM set up for short runs."""
    java_command, *rest = command(version, name, *arguments)
    return [java_command, *SHORT_RUN, f"-XX:SharedArchiveFile={class_archive(version)}", *rest]


def run(version: str, name: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end, in a JVM set up for short runs; captures stdout and stderr as text."""
    options.setdefault("timeout", 120)
    words = short_command(version, name, *arguments)
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)
