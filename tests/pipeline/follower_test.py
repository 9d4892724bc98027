"""A service that follows definitions: what starts, changes, pauses and stops, and which of two services runs.

The topic, the group and the clients are real; Spark's part is played by the test.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.pipeline.offline import PATIENCE_S, SESSION, Changes, Offline, Query

from ottla.client import Cluster, Consumer, Producer
from ottla.client.admin.groups import GroupAdmin, MemberIdentity
from ottla.client.settings import ClientConfig
from ottla.metrics import Registry
from ottla.pipeline import Pipeline, service, supervision
from ottla.pipeline.definitions import follower as follower_module
from ottla.pipeline.definitions.definition import PipelineDefinition
from ottla.pipeline.definitions.definitions_topic import SETTINGS, DefinitionsTopic
from ottla.pipeline.definitions.follower import CONSUMER_SETTINGS, DefinitionFollower
from ottla.pipeline.service import PipelineService, serve_pages
from ottla.server.embedded import EmbeddedBroker
from ottla.types import TopicPartition

BROKER = {"group.initial.rebalance.delay.ms": "0"}
SHOP = PipelineDefinition("shop.py", trigger="5s")
_numbers = count()


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    with EmbeddedBroker(config=BROKER) as broker:
        yield broker.bootstrap


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_S", 0.001)
    monkeypatch.setattr(service, "_LOOK_S", 0.001)


class Definitions:
    """A topic of definitions, and the services that follow it."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers
        self.name = f"definitions-{next(_numbers)}"
        self.cluster = Cluster(ClientConfig.from_mapping({"bootstrap.servers": brokers, **SETTINGS}))
        self.topic = DefinitionsTopic(self.cluster, self.name)
        self.topic.create_topic()
        self.services: list[Service] = []

    def put(self, name: str, definition: PipelineDefinition | None) -> None:
        self.topic.write_definition(name, definition)

    def serve(self, **settings: str | int) -> Service:
        self.services.append(Service(self, settings))
        return self.services[-1]

    def until(self, condition: Callable[[], bool]) -> None:
        """Have all services follow, in turn, until the condition holds."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, [each.states() for each in self.services]
            for each in self.services:
                each.follower.follow(0.01)

    def close(self) -> None:
        for each in self.services:
            each.close()
        self.cluster.close()


class Service:
    """One service; each start of a pipeline gets a query of its own, which has finished a batch."""

    def __init__(self, definitions: Definitions, settings: dict[str, str | int]) -> None:
        self.changes = Changes()
        self.loads: list[tuple[str, PipelineDefinition]] = []
        self.queries: dict[str, list[Query]] = {}
        self.faults: dict[str, Exception] = {}
        self.served = PipelineService(None, "checkpoints", "1s", on_change=self.changes)
        self.served.start(SESSION)
        ours = {"bootstrap.servers": definitions.brokers, **CONSUMER_SETTINGS, "group.id": definitions.name}
        self.consumer = Consumer(ours | settings)
        self.follower = DefinitionFollower(self.consumer, definitions.name, self.served, self.load)

    def load(self, name: str, definition: PipelineDefinition) -> Pipeline:
        if name in self.faults:
            raise self.faults[name]
        self.loads.append((name, definition))
        self.queries.setdefault(name, []).append(Query())
        return Offline(name, self.queries[name][-1])

    def states(self) -> dict[str, str]:
        return {each.name: each.supervision.state.value for each in self.served.pipelines}

    def close(self) -> None:
        """As a service ends: its pipelines first, then its membership."""
        self.follower.stop()
        self.consumer.close()


@pytest.fixture
def definitions(brokers: str) -> Iterator[Definitions]:
    found = Definitions(brokers)
    yield found
    found.close()


def test_a_pipeline_is_started_changed_paused_resumed_and_removed(definitions: Definitions) -> None:
    one = definitions.serve()
    definitions.until(lambda: one.follower.is_active)
    assert one.states() == {}
    definitions.put("shop", SHOP)
    definitions.put("stock", PipelineDefinition("stock.py"))
    definitions.until(lambda: one.states() == {"shop": "running", "stock": "running"})
    assert [each.trigger for each in one.served.pipelines] == ["5s", "1s"]
    faster = SHOP._replace(trigger="500ms")
    definitions.put("shop", faster)
    definitions.until(lambda: len(one.loads) == 3 and one.states()["shop"] == "running")
    assert one.loads[2] == ("shop", faster)
    assert one.changes.of("shop") == ["starting", "running", "stopped", "starting", "running"]
    definitions.put("shop", faster._replace(state="paused"))
    definitions.until(lambda: one.states()["shop"] == "paused")
    assert all(query.stopped.is_set() for query in one.queries["shop"])
    definitions.put("shop", faster)
    definitions.until(lambda: one.states()["shop"] == "running")
    definitions.put("shop", None)
    definitions.until(lambda: one.states() == {"stock": "running"})
    assert one.changes.of("stock") == ["starting", "running"], "the other one is left alone"
    assert not one.queries["stock"][0].stopped.is_set()


def test_a_stop_waits_for_the_batch_and_not_the_follower(definitions: Definitions) -> None:
    one = definitions.serve()
    definitions.put("shop", SHOP)
    definitions.until(lambda: one.states() == {"shop": "running"})
    (query,) = one.queries["shop"]
    query.busy = True
    definitions.put("shop", SHOP._replace(max_restarts=1))
    definitions.put("stock", PipelineDefinition("stock.py"))
    definitions.until(lambda: one.states().get("stock") == "running" and query.asked.is_set())
    assert (len(one.loads), query.stopped.is_set()) == (2, False), "the old run is not ended, the new one not begun"
    query.busy = False
    definitions.until(lambda: len(one.loads) == 3 and one.states()["shop"] == "running")
    assert query.stopped.is_set()


def test_the_same_definition_again_changes_nothing(definitions: Definitions) -> None:
    one = definitions.serve()
    for _ in range(3):
        definitions.put("shop", SHOP)
    definitions.put("stock", PipelineDefinition("stock.py"))
    definitions.until(lambda: one.states().get("stock") == "running")
    definitions.put("shop", SHOP)
    definitions.put("last", SHOP)
    definitions.until(lambda: one.states().get("last") == "running")
    assert one.changes.of("shop") == ["starting", "running"]


def test_nothing_starts_before_the_topic_is_read_to_its_end(definitions: Definitions) -> None:
    definitions.put("shop", SHOP)
    definitions.put("gone", SHOP)
    definitions.put("shop", SHOP._replace(state="paused"))
    definitions.put("gone", None)
    one = definitions.serve(**{"max.poll.records": 1})
    definitions.until(lambda: one.states() == {"shop": "paused"})
    assert one.loads == []


def test_a_file_that_cannot_be_loaded_is_tried_again(definitions: Definitions) -> None:
    one = definitions.serve()
    one.faults["shop"] = RuntimeError("shop.py does not exist in /srv: put it there")
    definitions.put("shop", SHOP)
    definitions.put("stock", PipelineDefinition("stock.py"))
    definitions.until(lambda: one.changes.of("shop").count("waiting") >= supervision.ALARMING)
    definitions.until(lambda: one.states()["stock"] == "running")
    (shop,) = [each for each in one.served.pipelines if each.name == "shop"]
    assert shop.supervision.reason == "shop.py does not exist in /srv: put it there"
    assert not one.served.is_healthy
    del one.faults["shop"]
    definitions.until(lambda: one.states()["shop"] == "running" and one.served.is_healthy)


def test_each_start_loads_the_file(definitions: Definitions) -> None:
    one = definitions.serve()
    definitions.put("shop", SHOP)
    definitions.until(lambda: one.states() == {"shop": "running"})
    one.queries["shop"][0].stop()  # as if its session was stopped
    definitions.until(lambda: len(one.loads) == 2 and one.states() == {"shop": "running"})
    assert "waiting" in one.changes.of("shop")


def test_offsets_of_the_group_do_not_hide_definitions(definitions: Definitions) -> None:
    definitions.put("shop", SHOP)
    GroupAdmin(definitions.cluster).alter_group_offsets(definitions.name, {TopicPartition(definitions.name, 0): 1})
    one = definitions.serve()
    definitions.until(lambda: one.states() == {"shop": "running"})


def test_one_that_was_given_up_is_started_by_another_definition(definitions: Definitions) -> None:
    one = definitions.serve()
    one.faults["shop"] = supervision.BadPipeline("the topic orders does not exist")
    definitions.put("shop", SHOP)
    definitions.until(lambda: one.states() == {"shop": "failed"})
    del one.faults["shop"]
    definitions.put("shop", SHOP._replace(state="paused"))
    definitions.until(lambda: one.states() == {"shop": "paused"})
    definitions.put("shop", SHOP)
    definitions.until(lambda: one.states() == {"shop": "running"})


def test_records_that_are_no_definitions_are_failed_pipelines(definitions: Definitions) -> None:
    one = definitions.serve()
    with Producer({"bootstrap.servers": definitions.brokers}) as producer:
        for key, value in ((b"newer", b'{"version":2}'), (b"broken", b"?"), (b"a/b", b"{}")):
            producer.send(definitions.name, value, key=key).result()
    definitions.put("shop", SHOP)
    definitions.until(lambda: one.states() == {"broken": "failed", "newer": "failed", "shop": "running"})
    reasons = {each.name: each.supervision.reason for each in one.served.pipelines}
    assert reasons["newer"] == "its record has version 2, and 1 is known: upgrade ottla"
    assert reasons["broken"] == "its record is not JSON"
    assert one.follower.ignored == 1
    definitions.put("broken", SHOP)
    definitions.until(lambda: one.states()["broken"] == "running")


def test_a_service_runs_no_more_pipelines_than_its_limit(
    definitions: Definitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "MAX_PIPELINES", 2)
    one = definitions.serve()
    for name in "abc":
        definitions.put(name, SHOP)
    definitions.until(lambda: one.states() == {"a": "running", "b": "running", "c": "failed"})
    definitions.put("a", None)
    definitions.until(lambda: one.states() == {"b": "running", "c": "running"})


def test_of_two_services_one_runs_and_the_other_takes_over(definitions: Definitions) -> None:
    definitions.put("shop", SHOP)
    one = definitions.serve(**{"heartbeat.interval.ms": 50})
    definitions.until(lambda: one.states() == {"shop": "running"})
    two = definitions.serve(**{"heartbeat.interval.ms": 50})
    definitions.until(lambda: len(members(definitions)) == 2)
    definitions.put("stock", PipelineDefinition("stock.py"))
    definitions.until(lambda: one.states().get("stock") == "running")
    assert (two.follower.is_active, two.states(), two.loads) == (False, {}, [])
    assert two.follower.describe_state() == {"topic": definitions.name, "role": "standby", "error": None}
    assert one.changes.of("shop") == ["starting", "running"], "a service that joins disturbs nothing"
    definitions.services.remove(one)
    one.close()
    assert all(query.stopped.is_set() for queries in one.queries.values() for query in queries)
    definitions.until(lambda: two.states() == {"shop": "running", "stock": "running"})


def test_the_pipelines_stop_before_the_partition_is_given_up(definitions: Definitions) -> None:
    definitions.put("shop", SHOP)
    one = definitions.serve()
    definitions.until(lambda: one.states() == {"shop": "running"})
    one.consumer.close()
    assert one.queries["shop"][0].stopped.is_set()
    assert one.states() == {}
    definitions.services.remove(one)
    two = definitions.serve()
    definitions.until(lambda: two.states() == {"shop": "running"})


def members(definitions: Definitions) -> list[MemberIdentity]:
    """The members between two rebalances."""
    view = GroupAdmin(definitions.cluster).describe_group(definitions.name)
    return [MemberIdentity(each.member_id) for each in view.members if view.state == "Stable"]


def test_a_service_that_the_group_has_removed_stops_its_pipelines_and_comes_back(definitions: Definitions) -> None:
    definitions.put("shop", SHOP)
    one = definitions.serve(**{"heartbeat.interval.ms": 50})
    definitions.until(lambda: one.states() == {"shop": "running"})
    (query,) = one.queries["shop"]
    # The batch does not end: where another service may run the pipeline already, the end is not waited for.
    query.busy = True
    definitions.until(lambda: len(members(definitions)) == 1)
    GroupAdmin(definitions.cluster).remove_members(definitions.name, members(definitions))
    definitions.until(lambda: len(one.loads) == 2 and one.states() == {"shop": "running"})
    assert query.stopped.is_set()
    assert one.changes.of("shop") == ["starting", "running", "stopped", "starting", "running"]


def test_pipelines_run_on_while_the_brokers_are_away(tmp_path: Path) -> None:
    first = EmbeddedBroker(tmp_path, BROKER).start()
    definitions = Definitions(first.bootstrap)
    definitions.put("shop", SHOP)
    one = definitions.serve(**{"default.api.timeout.ms": 1000, "request.timeout.ms": 900})
    definitions.until(lambda: one.states() == {"shop": "running"} and one.follower.error is None)
    pages = serve_pages(one.served, Registry(), "127.0.0.1:0", definitions=one.follower.describe_state)
    active = {"topic": definitions.name, "role": "active", "error": None}
    assert read_health(pages.port) == (200, "ready", active)
    first.stop()
    definitions.until(lambda: one.follower.error is not None)
    assert one.states() == {"shop": "running"}
    assert read_health(pages.port) == (503, "failing", {**active, "error": one.follower.error})
    again = EmbeddedBroker(tmp_path, {**BROKER, "listeners": f"PLAINTEXT://{first.bootstrap}"}).start()
    definitions.until(lambda: one.follower.error is None)
    definitions.put("shop", SHOP._replace(state="paused"))
    definitions.until(lambda: one.states() == {"shop": "paused"})
    assert one.changes.of("shop") == ["starting", "running", "stopped", "paused"]
    assert not [each for each in threading.enumerate() if each.name == "pipeline-shop"]
    definitions.close()
    pages.stop()
    again.stop()


def read_health(port: int) -> tuple[int, str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    return answer.status, document["status"], document["definitions"]
