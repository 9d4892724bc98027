"""Keys that have no row: old names, keys of features that Ottla does not have, keys without effect.

Zone: pure. Tables and look-ups. The text about a key is one line for the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

OLD_BROKER_NAMES: Final = {
    "transactional.id.timeout.ms": "transactional.id.expiration.ms",
    "max.transaction.timeout.ms": "transaction.max.timeout.ms",
    "max.message.size": "message.max.bytes",
}
"""Old names that are accepted with a warning."""

OLD_CLIENT_NAMES: Final = {
    "request.required.acks": "acks",
    "metadata.broker.list": "bootstrap.servers",
}

RETIRED_BROKER_NAMES: Final = {
    "brokerid": "node.id",
    "enable.zookeeper": "zookeeper.connect",
    "hostname": "listeners",
    "log.cleanup.interval.mins": "log.retention.check.interval.ms",
    "log.default.flush.interval.ms": "log.flush.interval.ms",
    "log.default.flush.scheduler.interval.ms": "log.flush.scheduler.interval.ms",
    "log.file.size": "log.segment.bytes",
    "log.flush.interval": "log.flush.interval.messages",
    "log.flush.interval.ms.per.topic": "flush.ms of the topic",
    "log.retention.bytes.per.topic": "retention.bytes of the topic",
    "log.retention.hours.per.topic": "retention.ms of the topic",
    "log.retention.size": "log.retention.bytes",
    "log.roll.hours.per.topic": "segment.ms of the topic",
    "log.segment.bytes.per.topic": "segment.bytes of the topic",
    "max.socket.request.bytes": "socket.request.max.bytes",
    "num.threads": "num.io.threads",
    "socket.receive.buffer": "socket.receive.buffer.bytes",
    "socket.send.buffer": "socket.send.buffer.bytes",
    "zk.connect": "zookeeper.connect",
    "zk.connectiontimeout.ms": "zookeeper.connection.timeout.ms",
    "zk.sessiontimeout.ms": "zookeeper.session.timeout.ms",
}
"""Names of Apache Kafka's first versions, and their replacements."""

RETIRED_CLIENT_NAMES: Final = {
    "auto.commit.enable": "enable.auto.commit",
    "autocommit.enable": "enable.auto.commit",
    "autocommit.interval.ms": "auto.commit.interval.ms",
    "autooffset.reset": "auto.offset.reset",
    "batch.num.messages": "batch.size",
    "block.on.buffer.full": "max.block.ms",
    "broker.list": "bootstrap.servers",
    "compressed.topics": "compression.type",
    "compression.codec": "compression.type",
    "consumer.timeout.ms": "the time-out of poll",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.size": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "groupid": "group.id",
    "key.serializer.class": "bytes, which the program makes itself",
    "message.send.max.retries": "delivery.timeout.ms",
    "metadata.fetch.timeout.ms": "max.block.ms",
    "producer.type": "send, which does not wait: for producer.type=sync wait for the future that it returns",
    "queue.buffering.max.messages": "buffer.memory",
    "queue.buffering.max.ms": "linger.ms",
    "queue.enqueue.timeout.ms": "max.block.ms",
    "rebalance.backoff.ms": "retry.backoff.ms",
    "rebalance.max.retries": "max.poll.interval.ms",
    "serializer.class": "bytes, which the program makes itself",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
    "zk.connect": "bootstrap.servers",
    "zookeeper.connect": "bootstrap.servers",
    **OLD_CLIENT_NAMES,
}
"""Names of the settings of Apache Kafka's first clients, and their replacements."""

_NO_QUORUM = "there is no KRaft quorum here, the metadata store takes its place; ignored"
_NO_TIER = "there is no remote tier; ignored"
_NO_CLASSES = "Java classes cannot be loaded; ignored"
_NO_PROVIDERS = "Java's security providers and encoders do not apply; ignored"
_NO_KERBEROS = "GSSAPI (Kerberos) is not supported; ignored"
_USE_LISTENERS = "give the address in listeners or advertised.listeners instead; ignored"

UNSUPPORTED: Final = {
    "replica.lag.max.messages": "it removed followers from the ISR at every burst; use replica.lag.time.max.ms",
    "process.roles": _NO_QUORUM,
    "controller.listener.names": _NO_QUORUM,
    "host.name": _USE_LISTENERS,
    "port": _USE_LISTENERS,
    "advertised.host.name": _USE_LISTENERS,
    "advertised.port": _USE_LISTENERS,
    "principal.builder.class": _NO_CLASSES,
    "create.topic.policy.class.name": _NO_CLASSES,
    "alter.config.policy.class.name": _NO_CLASSES,
    "client.quota.callback.class": _NO_CLASSES,
    "config.providers": "resolved only in the file and the words of a command; ignored",
    "early.start.listeners": _NO_QUORUM,
    "initial.broker.registration.timeout.ms": _NO_QUORUM,
    "eligible.leader.replicas.enable": _NO_QUORUM,
    "cordoned.log.dirs": "log directories cannot be cordoned; ignored",
    "follower.fetch.last.tiered.offset.enable": _NO_TIER,
    "unstable.api.versions.enable": "unstable versions are never offered; ignored",
    "unstable.feature.versions.enable": "unstable versions are never offered; ignored",
}
"""Keys of Kafka for features that Ottla does not have, with the reason."""

UNSUPPORTED_PREFIXES: Final = (
    ("controller.quorum.", _NO_QUORUM),
    ("controller.performance.", _NO_QUORUM),
    ("metadata.log.", _NO_QUORUM),
    ("metadata.max.", _NO_QUORUM),
    ("remote.", _NO_TIER),
    ("rsm.config.", _NO_TIER),
    ("rlmm.config.", _NO_TIER),
    ("log.remote.", _NO_TIER),
    ("sasl.kerberos.", _NO_KERBEROS),
    ("sasl.", "brokers do not read this setting of SASL; ignored"),
    ("security.providers", _NO_PROVIDERS),
    ("password.encoder.", _NO_PROVIDERS),
    ("listener.name.", "this is not a key that a single listener may have; ignored"),
    ("zookeeper.ssl.", "the connection to ZooKeeper is not encrypted; ignored"),
    ("zookeeper.metadata.migration.", "there is nothing to migrate to; ignored"),
    ("group.share.", "share groups are not served yet; ignored"),
    ("share.", "share groups are not served yet; ignored"),
    ("errors.deadletterqueue.", "share groups are not served yet; ignored"),
    ("group.streams.", "streams groups are not served; ignored"),
    ("config.providers.", "resolved only in the file and the words of a command; ignored"),
)

HARMLESS: Final = ("auto.include.jmx.reporter", "zookeeper.clientCnxnSocket", "server.max.startup.time.ms")
HARMLESS_PREFIXES: Final = ("kafka.metrics.", "confluent.", "internal.")
"""Prefixes of settings of the Java virtual machine and of tools, which are ignored without a warning."""


def unsupported_reason(name: str) -> str | None:
    """The reason why a known key has no effect; None for other keys."""
    if name in UNSUPPORTED:
        return UNSUPPORTED[name]
    if name in RETIRED_BROKER_NAMES:
        return f"a name of Apache Kafka's first versions; use {RETIRED_BROKER_NAMES[name]} instead; ignored"
    # The first prefix that matches counts, so `sasl.kerberos.` has to precede `sasl.` in the table.
    for prefix, reason in UNSUPPORTED_PREFIXES:
        if name.startswith(prefix):
            return reason
    return None


def is_harmless(name: str) -> bool:
    """Whether a key is ignored without a warning."""
    return name in HARMLESS or name.startswith(HARMLESS_PREFIXES)


def unknown_key_warning(name: str, known: Iterable[str]) -> str:
    """The warning for an unknown key, with the most similar known one."""
    shown = name if len(name) <= 100 else name[:100] + "…"
    return f"unknown configuration {shown!r}" + (nearest_key_hint(name, known) or "; ignored")


def nearest_key_hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown key: the one that was probably meant, or nothing."""
    near = get_close_matches(name[:100], list(known), n=1, cutoff=0.75)
    return f"; did you mean {near[0]!r}?" if near else ""
