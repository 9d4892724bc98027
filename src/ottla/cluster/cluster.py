"""The cluster as this broker knows it: the image, and the settings in force.

Zone: deterministic. The image comes from the controller (UpdateMetadata), settings from the metadata store; who reads
and writes them stands in `config_changes`, `config_writer` and `topic_requests`. Whoever waits for the image to show
something waits here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ottla.changes import changes_state
from ottla.cluster.configs import Layers, keeping_records, resolve, usable_layers
from ottla.cluster.image import NO_LEADER, BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from ottla.cluster.topic_bytes import KeptTopics
from ottla.cluster.updates import updated
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.purgatory.purgatory import DelayedOperation, Purgatory
from ottla.purgatory.timing_wheel import Timer
from ottla.types import Endpoint
from ottla.wire.messages import UpdateMetadataRequest

logger = logging.getLogger(__name__)

DOUBT_MS: Final = 3_000
"""How long the image is doubted where a broker has just fallen silent; if it is dead, others lead by then."""
LINGER_MS: Final = 3_000
"""How long clients are still told of a broker that has gone: librdkafka (2.10 on) forgets a broker that is not told any
more together with the partitions that it is just moving to their next leader, and notices a second later."""
_IMAGE = "cluster image"
"""Watch key of those who wait for the image."""


class Cluster:
    """What one broker knows."""

    def __init__(self, config: BrokerConfig, purgatory: Purgatory) -> None:
        self.on_change: Callable[[Delta], None] = _do_nothing
        """Told of every change of the image, before whoever waits for it."""
        self.image = ClusterImage()
        self.config = config
        """The broker's settings in force: static ones with dynamic ones on top."""
        self.topic_defaults = config.topic_defaults
        self.me = BrokerImage(config.node_id, (), config.broker_rack, -1)
        """This broker as it is registered; epoch -1 while it is not."""
        self.expected: tuple[str, ...] = ()
        """Topics that were there when this broker joined."""
        self.kept_topics = KeptTopics()
        self._static = config
        self._purgatory = purgatory
        self._overrides: dict[str, Mapping[str, str]] = {}
        """Topics' own settings as the store has them."""
        self._gone: dict[int, BrokerImage] = {}
        """Brokers that went a moment ago."""
        self._any_doubted: tuple[ClusterImage, frozenset[int], bool] | None = None
        self._silent: dict[int, Timer] = {}
        """Brokers that have just fallen silent, until they are not doubted any more."""

    @property
    def node_id(self) -> int:
        """This broker's number."""
        return self._static.node_id

    @property
    def layers(self) -> Layers:
        """This broker's settings by origin."""
        own = self.image.broker_overrides.get(self.node_id, {})
        return Layers(own, self.image.broker_defaults, self._static.given)

    # -- who may be dead -----------------------------------------------------------------------------------------

    def fell_silent(self, broker: int) -> None:
        """A broker that answered does not any more; if it is dead, others will soon lead its partitions."""
        if broker not in self._silent:
            self._silent[broker] = self._purgatory.look_after(DOUBT_MS, lambda: self.on_broker_responding(broker))

    def on_broker_responding(self, broker: int) -> None:
        """It answers again, or it has been doubted long enough."""
        timer = self._silent.pop(broker, None)
        if timer is not None:
            timer.cancel()
            self._purgatory.check(_IMAGE)

    def is_doubtful(self, names: Iterable[str] | None) -> bool:
        """Whether a leader of one of these topics (None: of any) has just fallen silent."""
        if not self._silent:
            return False
        if names is None:
            return self._is_any_doubted()
        topics = self.image.topics
        return any(self._is_doubted(topics[name]) for name in names if name in topics)

    def _is_any_doubted(self) -> bool:
        """Looked up once per image and set of silent brokers: many may ask for all topics meanwhile."""
        image, silent = self.image, frozenset(self._silent)
        if self._any_doubted is None or self._any_doubted[0] is not image or self._any_doubted[1] != silent:
            self._any_doubted = image, silent, any(map(self._is_doubted, image.topics.values()))
        return self._any_doubted[2]

    def _is_doubted(self, topic: TopicImage) -> bool:
        return any(partition.leader in self._silent for partition in topic.partitions)

    def without_silent_leaders(self, topic: TopicImage) -> TopicImage:
        """A topic without the leaders that have just fallen silent; the same one if it has none."""
        return _without_leaders(topic, self._silent) if self._silent and self._is_doubted(topic) else topic

    # -- settings ----------------------------------------------------------------------------------------------

    def topic_config(self, name: str) -> TopicConfig:
        """The settings of a topic, the defaults for one that has none."""
        topic = self.image.topics.get(name)
        if topic is not None:
            return topic.config
        return resolve(self._overrides.get(name, {}), self.topic_defaults)

    def has_settings(self, name: str) -> bool:
        """Whether a topic's own settings have been read."""
        return name in self._overrides

    @changes_state
    def take_topic_settings(self, name: str, overrides: Mapping[str, str]) -> None:
        """A topic's own settings, as they are now."""
        self._overrides[name] = overrides
        present = self.image.topics.get(name)
        if present is not None and present.overrides != overrides:
            after = present._replace(overrides=overrides, config=resolve(overrides, self.topic_defaults))
            self._change_image(self.image.with_topics(after), Delta(configured=(name,)))

    @changes_state
    def take_broker_settings(self, shared: Mapping[str, str], own: Mapping[str, str]) -> None:
        """The dynamic settings of all brokers and of this one, as they are now. What cannot be used is left out."""
        if self._static.ottla_ignore_dynamic_configs and (shared or own):
            names = sorted({*shared, *own})
            logger.warning("stored dynamic settings are not used (ottla.ignore.dynamic.configs): %s", ", ".join(names))
            shared, own = {}, keeping_records(names)
        layers = self.layers
        usable, lines = usable_layers(Layers(own, shared, layers.static))
        for line in lines:
            logger.error("a stored dynamic setting of brokers is not used: %s; delete it or set it again", line)
        shared, own = usable.shared, usable.own
        if layers.shared == shared and layers.own == own:
            return
        self.image = replace(
            self.image, epoch=self.image.epoch + 1, broker_defaults=shared, broker_overrides={self.node_id: own}
        )
        self.config = self.layers.resolved()
        self.topic_defaults = self.config.topic_defaults
        self._change_image(*self._with_new_defaults())

    def _with_new_defaults(self) -> tuple[ClusterImage, Delta]:
        """Topics without a setting of their own follow the broker's."""
        changed = []
        for topic in self.image.topics.values():
            config = resolve(topic.overrides, self.topic_defaults)
            if config != topic.config:
                changed.append(topic._replace(config=config))
        names = tuple(topic.name for topic in changed)
        return self.image.with_topics(*changed), Delta(configured=names, broker_config=True)

    # -- the image ---------------------------------------------------------------------------------------------

    def set_identity(self, cluster_id: str, endpoints: Sequence[Endpoint], topics: Sequence[str]) -> None:
        """The name of the cluster, where this broker is reached, and the topics that there are."""
        self.expected = tuple(topics)
        self.image = replace(self.image, epoch=self.image.epoch + 1, cluster_id=cluster_id)
        self.me = self.me._replace(endpoints=tuple(endpoints))

    def registered(self, epoch: int) -> None:
        """This broker is registered; `epoch` is the czxid of that."""
        self.me = self.me._replace(epoch=epoch)

    @changes_state
    def update(self, request: UpdateMetadataRequest) -> None:
        """Take what the controller says; settings of new topics have been read."""
        image, delta = updated(self.image, request, self.me, self._topic)
        for name in delta.deleted:
            self._overrides.pop(name, None)
        for broker in self.image.brokers.values():
            if broker.node_id not in image.brokers:
                self._gone[broker.node_id] = broker
                self._purgatory.look_after(LINGER_MS, lambda broker=broker: self._forget_broker(broker))  # type: ignore[misc]
        self._change_image(image, delta)

    @changes_state
    def retain(self, names: Collection[str]) -> None:
        """Of the topics that are known only these are there: the others went while nobody told this broker."""
        gone = tuple(name for name in self.image.topics if name not in names)
        for name in gone:
            self._overrides.pop(name, None)
        if gone:
            self._change_image(self.image.without_topics(gone), Delta(deleted=gone))

    @property
    def told_brokers(self) -> Mapping[int, BrokerImage]:
        """Brokers that clients are told of: those that live, and those that went a moment ago."""
        return {**self._gone, **self.image.brokers}

    @changes_state
    def _forget_broker(self, broker: BrokerImage) -> None:
        if self._gone.get(broker.node_id) is broker:
            del self._gone[broker.node_id]
            self.image = replace(self.image, epoch=self.image.epoch + 1)

    def forget_settings(self, name: str) -> None:
        """A topic of that name is another one now: its settings have to be read."""
        self._overrides.pop(name, None)

    def _topic(self, name: str, topic_id: bytes, partitions: tuple[PartitionImage, ...]) -> TopicImage:
        overrides = self._overrides.get(name, {})
        return TopicImage(name, topic_id, partitions, overrides, resolve(overrides, self.topic_defaults))

    def _change_image(self, image: ClusterImage, delta: Delta) -> None:
        self.image = image
        self.kept_topics.forget_topics((*delta.deleted, *delta.changed), image.topics)
        self.on_change(delta)
        self._purgatory.check(_IMAGE)

    def when(self, holds: Callable[[ClusterImage], bool], timeout_ms: int, then: Callable[[], None]) -> None:
        """Call `then` when the image shows something: at once, at a change, or when the time is over all the same."""
        self._purgatory.try_complete_else_watch(_ImageWaiter(self, holds, then), [_IMAGE], timeout_ms)


class _ImageWaiter(DelayedOperation):
    """Somebody who waits for the image."""

    __slots__ = ("_cluster", "_holds", "_then")

    def __init__(self, cluster: Cluster, holds: Callable[[ClusterImage], bool], then: Callable[[], None]) -> None:
        super().__init__()
        self._cluster = cluster
        self._holds = holds
        self._then = then

    def try_complete(self) -> bool:
        return self.completed or (self._holds(self._cluster.image) and self.complete())

    def on_complete(self) -> None:
        self._then()


def _without_leaders(topic: TopicImage, silent: Collection[int]) -> TopicImage:
    partitions = [
        partition._replace(leader=NO_LEADER) if partition.leader in silent else partition
        for partition in topic.partitions
    ]
    return topic._replace(partitions=tuple(partitions))


def _do_nothing(_: Delta) -> None:
    """Nobody listens yet."""
