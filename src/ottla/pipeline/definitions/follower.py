"""`DefinitionFollower`: keeps the pipelines of a service as the definitions in the cluster are.

Zone: real. One thread calls `follow`; each pipeline has its own thread, which stops it, so that `follow` does not wait.

Services of one topic are members of one consumer group, and the topic has one partition: the member that has it runs
the pipelines, the others stand by. A member stops its pipelines before it gives the partition up. Where it cannot, as
when it was cut off from the brokers, two drivers run a query over one checkpoint, and the sink writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from ottla.client.consumer import Consumer
from ottla.client.errors import ClientError
from ottla.pipeline.definitions.definition import (
    MAX_PIPELINES,
    PAUSED,
    Definition,
    DefinitionTable,
    PipelineDefinition,
    UnreadableDefinition,
)
from ottla.pipeline.pipeline import Pipeline
from ottla.pipeline.service import STOP_S, PipelineService, ServedPipeline
from ottla.pipeline.supervision import Supervision
from ottla.types import TopicPartition

CONSUMER_SETTINGS: Final[dict[str, str | int | bool]] = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    # A service that joins must not have the one that runs the pipelines give up the partition for a moment.
    "partition.assignment.strategy": "cooperative-sticky",
    # How long `follow` may wait for brokers that are away: a stop of the service waits for it.
    "default.api.timeout.ms": 5_000,
    # How soon a topic that was deleted and made again is found.
    "metadata.max.age.ms": 10_000,
    "fetch.max.bytes": 16 << 20,
    "max.partition.fetch.bytes": 1 << 20,
}
"""Settings that the follower's consumer has, whatever the user's are, besides `group.id`."""


class DefinitionFollower:
    """Starts, changes, pauses and stops pipelines as their definitions change.

    consumer: with CONSUMER_SETTINGS; the caller closes it after `stop`. load: makes the pipeline of a name from its
    file; called in the pipeline's thread, before each start. make_supervision: the rules for restarts; gets
    `max_restarts` of the definition. stop_s: how long a stop waits for the batches that are running.
    """

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        service: PipelineService,
        load: Callable[[str, PipelineDefinition], Pipeline],
        make_supervision: Callable[[int | None], Supervision] = lambda _: Supervision(),
        stop_s: float = STOP_S,
    ) -> None:
        self.error: str | None = None
        """Why the last read failed. The pipelines run on as the last definitions were."""
        self.ignored = 0
        """Records that are no definitions of pipelines."""
        self.topic = topic
        self._consumer = consumer
        self._tp = TopicPartition(topic, 0)
        self._service = service
        self._load = load
        self._make_supervision = make_supervision
        self._stop_s = stop_s
        self._is_active = False
        self._table: DefinitionTable | None = None
        """None: the topic was not read to its end since the partition was assigned."""
        self._reading = DefinitionTable()
        self._end: int | None = None
        self._begun: dict[str, tuple[Definition, ServedPipeline]] = {}
        """What the pipelines of the service were begun with."""

    @property
    def is_active(self) -> bool:
        """Whether this member of the group runs the pipelines."""
        return self._is_active

    def describe_state(self) -> dict[str, str | None]:
        """The state for a JSON document."""
        role = "active" if self._is_active else "standby"
        return {"topic": self.topic, "role": role, "error": self.error}

    def follow(self, timeout_s: float) -> bool:
        """Wait for records and events of the group, and have the service do what they ask for.

        False if the topic could not be read: `error` has the reason, and the caller waits before the next call. Raises
        nothing for errors of the client.
        """
        try:
            self._read_records(timeout_s)
            self.error = None
        except ClientError as error:
            self.error = str(error)
        # Also after an error: a pipeline that has stopped meanwhile is to start with its new definition.
        self._reconcile()
        return self.error is None

    def stop(self, timeout: float | None = None) -> None:
        """Stop all pipelines, as `PipelineService.stop`. None: `stop_s`."""
        self._service.stop(self._stop_s if timeout is None else timeout)

    # -- the topic and the group ---------------------------------------------------------------------------------------

    def _join_group(self) -> None:
        self._consumer.subscribe(
            [self.topic], on_assigned=self._on_assigned, on_revoked=self._on_revoked, on_lost=self._on_lost
        )

    def _read_records(self, timeout_s: float) -> None:
        # Not earlier: while Spark starts, this member would have the partition, and run nothing.
        if not self._consumer.subscription():
            self._join_group()
        for record in self._consumer.poll(timeout_s):
            self._reading.apply_record(record.key, record.value)
        self.ignored = self._reading.ignored
        if not self._is_active or self._table is not None:
            return
        # Half a topic would start pipelines that a later record pauses or deletes.
        if self._end is None:
            self._end = self._consumer.end_offsets([self._tp])[self._tp]
        if self._consumer.position(self._tp) >= self._end:
            self._table = self._reading

    def _on_assigned(self, partitions: list[TopicPartition]) -> None:
        if self._tp in partitions:
            self._is_active, self._table, self._end = True, None, None
            self._reading = DefinitionTable()
            self._consumer.seek_to_beginning([self._tp])

    def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        self._give_up(partitions, self._stop_s)

    def _on_lost(self, partitions: list[TopicPartition]) -> None:
        # Another member may have begun: nothing is gained by the end of a batch that its transactions fence.
        self._give_up(partitions, 0)

    def _give_up(self, partitions: list[TopicPartition], timeout: float) -> None:
        if self._tp in partitions:
            self._is_active, self._table = False, None
            self._service.stop(timeout)
            self._reconcile()

    # -- the service ---------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Compare what was begun with the definitions, and do the next step of each difference."""
        wanted = self._wanted_definitions()
        for name, (definition, served) in list(self._begun.items()):
            if wanted.get(name) != definition:
                served.request_stop(self._stop_s)
                # Its thread stops it after its batch. Until then nothing of this name is started.
                if not served.is_alive:
                    del self._begun[name]
                    self._service.remove_pipeline(served)
        for name, definition in wanted.items():
            if name not in self._begun:
                self._begun[name] = (definition, self._begin(name, definition))

    def _wanted_definitions(self) -> dict[str, Definition]:
        """By name. While the topic is read after a new assignment nothing is known to be wanted, and nothing runs."""
        found = sorted(self._table.definitions.items()) if self._table is not None else []
        refused = UnreadableDefinition(f"a service runs at most {MAX_PIPELINES} pipelines: use another topic for more")
        return dict(found[:MAX_PIPELINES]) | {name: refused for name, _ in found[MAX_PIPELINES:]}

    def _begin(self, name: str, definition: Definition) -> ServedPipeline:
        if isinstance(definition, UnreadableDefinition):
            supervision = Supervision()
            supervision.on_refused(definition.reason)
            return self._service.add_pipeline(name, supervision)
        supervision = self._make_supervision(definition.max_restarts)
        if definition.state == PAUSED:
            supervision.on_paused()
            return self._service.add_pipeline(name, supervision)
        return self._service.start_pipeline(
            name, partial(self._load, name, definition), supervision, definition.trigger
        )
