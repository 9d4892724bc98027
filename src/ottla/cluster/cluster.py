"""The cluster as this broker knows it: the image and the effective settings.

Zone: deterministic. The image comes from the controller (UpdateMetadata), settings from the metadata store;
`config_changes`, `config_writer` and `topic_requests` read and write them. Callers can wait here for a state of the
image.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ottla.changes import changes_state
from ottla.cluster.configs import Layers, resolve_topic, retention_guards, usable_layers
from ottla.cluster.image import NO_LEADER, BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from ottla.cluster.store.expected_topics import ExpectedTopics
from ottla.cluster.topic_bytes import KeptTopics
from ottla.cluster.updates import apply_request
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.purgatory.purgatory import DelayedOperation, Purgatory
from ottla.purgatory.timing_wheel import Timer
from ottla.types import Endpoint
from ottla.wire.messages import UpdateMetadataRequest

logger = logging.getLogger(__name__)

DOUBT_MS: Final = 3_000
"""How long a broker that stopped responding is doubted. If it is dead, others lead its partitions by then."""
LINGER_MS: Final = 3_000
"""How long Metadata still lists a broker that is gone. librdkafka (2.10 on) removes a missing broker together with the
partitions that it is just moving to their next leader, and recovers only a second later."""
_IMAGE = "cluster image"
"""The watch key of operations that wait for the image."""


class Cluster:
    """One broker's view of the cluster."""

    def __init__(self, config: BrokerConfig, purgatory: Purgatory, on_change: Callable[[Delta], None]) -> None:
        """`on_change` is called after every change of the image, before the operations that wait for it."""
        self.image = ClusterImage()
        self.config = config
        """The broker's effective settings: dynamic ones override static ones."""
        self.topic_defaults = config.topic_defaults
        self.me = BrokerImage(config.node_id, (), config.broker_rack, -1)
        """This broker as it is registered; epoch -1 while it is not."""
        self.expected_topics = ExpectedTopics()
        self.kept_topics = KeptTopics()
        self._static = config
        self._purgatory = purgatory
        self._on_change = on_change
        self._overrides: dict[str, Mapping[str, str]] = {}
        """Topics' own settings as the store has them."""
        self._gone_brokers: dict[int, BrokerImage] = {}
        """Brokers that are gone, for LINGER_MS."""
        self._any_doubted: tuple[ClusterImage, frozenset[int], bool] | None = None
        self._silent_brokers: dict[int, Timer] = {}
        """Brokers that stopped responding, with the timer that ends the doubt."""

    @property
    def node_id(self) -> int:
        """This broker's number."""
        return self._static.node_id

    @property
    def layers(self) -> Layers:
        """This broker's settings by origin."""
        own = self.image.broker_overrides.get(self.node_id, {})
        return Layers(own, self.image.broker_defaults, self._static.given)

    # -- silent brokers ------------------------------------------------------------------------------------------

    def on_broker_silent(self, broker: int) -> None:
        """Doubt a broker that stopped responding: if it is dead, others will soon lead its partitions."""
        if broker not in self._silent_brokers:
            self._silent_brokers[broker] = self._purgatory.look_after(
                DOUBT_MS, lambda: self.on_broker_responding(broker)
            )

    def on_broker_responding(self, broker: int) -> None:
        """End the doubt about a broker: it responds again, or DOUBT_MS are over."""
        timer = self._silent_brokers.pop(broker, None)
        if timer is not None:
            timer.cancel()
            self._purgatory.check_watchers(_IMAGE)

    def is_doubtful(self, names: Iterable[str] | None) -> bool:
        """Whether a leader of one of these topics (None: of any) has just stopped responding."""
        if not self._silent_brokers:
            return False
        if names is None:
            return self._is_any_doubted()
        topics = self.image.topics
        return any(self._is_doubted(topics[name]) for name in names if name in topics)

    def _is_any_doubted(self) -> bool:
        """Computed once per image and set of silent brokers, because many clients may ask for all topics meanwhile."""
        image, silent = self.image, frozenset(self._silent_brokers)
        if self._any_doubted is None or self._any_doubted[0] is not image or self._any_doubted[1] != silent:
            self._any_doubted = image, silent, any(map(self._is_doubted, image.topics.values()))
        return self._any_doubted[2]

    def _is_doubted(self, topic: TopicImage) -> bool:
        return any(partition.leader in self._silent_brokers for partition in topic.partitions)

    def without_silent_leaders(self, topic: TopicImage) -> TopicImage:
        """The topic without the leaders that have just stopped responding; the same object if there is none."""
        return (
            _without_leaders(topic, self._silent_brokers) if self._silent_brokers and self._is_doubted(topic) else topic
        )

    def on_broker_heard(self, broker: int, hears: bool) -> None:
        """Handle that a leader stopped answering this broker's fetches (False) or answers again (True)."""
        if hears:
            self.on_broker_responding(broker)
        else:
            self.on_broker_silent(broker)

    # -- settings ----------------------------------------------------------------------------------------------

    def topic_config(self, name: str) -> TopicConfig:
        """The effective settings of a topic; the broker's defaults if it has none of its own."""
        topic = self.image.topics.get(name)
        if topic is not None:
            return topic.config
        return resolve_topic(self._overrides.get(name, {}), self.topic_defaults)

    def has_settings(self, name: str) -> bool:
        """Whether a topic's own settings have been read."""
        return name in self._overrides

    @changes_state
    def set_topic_settings(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replace a topic's own settings."""
        self._overrides[name] = overrides
        present = self.image.topics.get(name)
        # A topic that the image lacks gets its settings when UpdateMetadata adds it.
        if present is not None and present.overrides != overrides:
            after = present._replace(overrides=overrides, config=resolve_topic(overrides, self.topic_defaults))
            self._change_image(self.image.with_topics({name: after}), Delta(configured=(name,)))

    @changes_state
    def set_broker_settings(self, shared: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Replace the dynamic settings of all brokers and of this one. Leaves out those that cannot be used."""
        # Ignored settings must not cause deletions: those that extend retention are replaced by "keep all".
        if self._static.ottla_ignore_dynamic_configs and (shared or own):
            names = sorted({*shared, *own})
            logger.warning("ignoring stored dynamic settings (ottla.ignore.dynamic.configs): %s", ", ".join(names))
            shared, own = {}, retention_guards(names)
        layers = self.layers
        # Invalid settings are left out, so that another version's keys do not prevent this broker from running.
        usable, lines = usable_layers(Layers(own, shared, layers.static))
        for line in lines:
            logger.error("ignoring a stored dynamic setting of brokers: %s; delete it or set it again", line)
        shared, own = usable.shared, usable.own
        if layers.shared == shared and layers.own == own:
            return
        self.image = replace(
            self.image, epoch=self.image.epoch + 1, broker_defaults=shared, broker_overrides={self.node_id: own}
        )
        self.config = self.layers.resolve_layers()
        self.topic_defaults = self.config.topic_defaults
        self._change_image(*self._with_new_defaults())

    def _with_new_defaults(self) -> tuple[ClusterImage, Delta]:
        """The image in which topics without settings of their own have the broker's new defaults."""
        changed: dict[str, TopicImage | None] = {}
        for topic in self.image.topics.values():
            config = resolve_topic(topic.overrides, self.topic_defaults)
            if config != topic.config:
                changed[topic.name] = topic._replace(config=config)
        return self.image.with_topics(changed), Delta(configured=tuple(changed), broker_config=True)

    # -- the image ---------------------------------------------------------------------------------------------

    def set_identity(self, cluster_id: str, endpoints: Sequence[Endpoint], topics: Sequence[str]) -> None:
        """Record the cluster's id, this broker's endpoints, and the topics that exist."""
        self.expected_topics.expect_topics(topics)
        self.image = replace(self.image, epoch=self.image.epoch + 1, cluster_id=cluster_id)
        self.me = self.me._replace(endpoints=tuple(endpoints))

    def on_registered(self, epoch: int) -> None:
        """Record the epoch (czxid) of this broker's registration."""
        self.me = self.me._replace(epoch=epoch)

    @changes_state
    def apply_update(self, request: UpdateMetadataRequest) -> None:
        """Apply UpdateMetadata. The settings of its new topics have been read before."""
        image, delta = apply_request(self.image, request, self.me, self._build_topic)
        for name in delta.deleted:
            self._overrides.pop(name, None)
        # Brokers that have just disappeared are listed for a while, see LINGER_MS.
        for broker in self.image.brokers.values():
            if broker.node_id not in image.brokers:
                self._gone_brokers[broker.node_id] = broker
                self._purgatory.look_after(LINGER_MS, lambda broker=broker: self._forget_broker(broker))  # type: ignore[misc]
        self._change_image(image, delta)

    @changes_state
    def retain_topics(self, names: Collection[str], before: ClusterImage) -> None:
        """Remove all topics but these: the others were deleted while this broker received no updates.

        `before`: the image when the names were read. Topics that came since are not among the names, and stay.
        """
        gone = tuple(
            name
            for name, topic in self.image.topics.items()
            if name not in names and name in before.topics and before.topics[name].topic_id == topic.topic_id
        )
        for name in gone:
            self._overrides.pop(name, None)
        if gone:
            self._change_image(self.image.with_topics(dict.fromkeys(gone)), Delta(deleted=gone))

    @property
    def listed_brokers(self) -> Mapping[int, BrokerImage]:
        """The brokers that Metadata lists: live ones, and those that are gone for less than LINGER_MS."""
        return {**self._gone_brokers, **self.image.brokers}

    @changes_state
    def _forget_broker(self, broker: BrokerImage) -> None:
        if self._gone_brokers.get(broker.node_id) is broker:
            del self._gone_brokers[broker.node_id]
            # Nothing in the image changes, but cached responses still list the broker.
            self.image = replace(self.image, epoch=self.image.epoch + 1)

    def forget_settings(self, name: str) -> None:
        """Drop a topic's settings: there is another topic of that name now, whose settings have to be read."""
        self._overrides.pop(name, None)

    def _build_topic(self, name: str, topic_id: bytes, partitions: tuple[PartitionImage, ...]) -> TopicImage:
        overrides = self._overrides.get(name, {})
        return TopicImage(name, topic_id, partitions, overrides, resolve_topic(overrides, self.topic_defaults))

    def _change_image(self, image: ClusterImage, delta: Delta) -> None:
        self.image = image
        self.expected_topics.on_topics((*delta.deleted, *delta.changed))
        # The caches first, because the callbacks may answer requests. The waiting operations last: they find the roles
        # and settings that follow from the new image.
        self.kept_topics.forget_topics((*delta.deleted, *delta.changed), image.topics)
        self._on_change(delta)
        self._purgatory.check_watchers(_IMAGE)

    def wait_for_image(self, holds: Callable[[ClusterImage], bool], timeout_ms: int, then: Callable[[], None]) -> None:
        """Call `then` when `holds` is true for the image, now or after a change, or when the time is over."""
        self._purgatory.try_complete_else_watch(_ImageWaiter(self, holds, then), [_IMAGE], timeout_ms)


class _ImageWaiter(DelayedOperation):
    """An operation that waits for a state of the image."""

    __slots__ = ("_cluster", "_holds", "_then")

    def __init__(self, cluster: Cluster, holds: Callable[[ClusterImage], bool], then: Callable[[], None]) -> None:
        super().__init__()
        self._cluster = cluster
        self._holds = holds
        self._then = then

    def try_complete(self) -> bool:
        return self.completed or (self._holds(self._cluster.image) and self.force_complete())

    def on_complete(self) -> None:
        self._then()


def _without_leaders(topic: TopicImage, silent: Collection[int]) -> TopicImage:
    partitions = [
        partition._replace(leader=NO_LEADER) if partition.leader in silent else partition
        for partition in topic.partitions
    ]
    return topic._replace(partitions=tuple(partitions))
