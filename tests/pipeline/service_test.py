"""A service of several pipelines: one that fails is started again or given up, the others run on.

Spark's part is played by the test: a frame that starts a query, and a query that ends as the test wants.
"""

from __future__ import annotations

import http.client
import json
import threading

import pytest
from tests.pipeline.offline import PATIENCE_S, SESSION, Changes, Offline, Query

from ottla.metrics import Registry
from ottla.pipeline import BadPipeline, service, supervision
from ottla.pipeline.queries import stop_after_batch
from ottla.pipeline.service import PipelineService, serve_pages
from ottla.pipeline.supervision import State


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_S", 0.001)
    monkeypatch.setattr(service, "_LOOK_S", 0.001)


def test_one_that_fails_is_started_again_and_one_that_cannot_run_is_given_up() -> None:
    changes = Changes()
    steady, healed = Query(), Query()
    shaky = Offline("shaky", Query(OSError("gone"), batches=0), OSError("still gone"), healed)
    served = PipelineService(
        [Offline("steady", steady), shaky, Offline("wrong", BadPipeline("no column value"))],
        "checkpoints", "1s", on_change=changes,
    )  # fmt: skip
    registry = Registry()
    pages = serve_pages(served, registry, "127.0.0.1:0")
    served.start(SESSION)
    changes.wait_for("steady", State.RUNNING)
    changes.wait_for("shaky", State.RUNNING, 2)
    changes.wait_for("wrong", State.FAILED)
    connection = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=PATIENCE_S)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    assert (answer.status, document["status"]) == (503, "failing")
    assert document["pipelines"]["wrong"] == {"state": "failed", "restarts": 0, "reason": "no column value"}
    assert document["pipelines"]["steady"]["state"] == "running"
    assert registry.value_of("ottla_pipeline_failed", pipeline="wrong") == 1
    assert registry.value_of("ottla_pipeline_restarts_total", pipeline="shaky") == 2
    assert registry.value_of("ottla_pipeline_running", pipeline="shaky") == 1
    served.stop()
    served.stop()
    pages.stop()
    assert changes.of("shaky") == [
        "starting", "running", "waiting", "starting", "waiting", "starting", "running", "stopped",
    ]  # fmt: skip
    assert changes.of("steady") == ["starting", "running", "stopped"]
    assert steady.stopped.is_set()
    assert healed.stopped.is_set()
    assert not served.is_running


def test_a_pipeline_that_fails_again_and_again_is_given_up() -> None:
    changes = Changes()
    served = PipelineService(
        [Offline("bad", *[Query(OSError("x"), batches=0) for _ in range(3)])],
        "checkpoints", "1s", lambda: supervision.Supervision(max_restarts=2), changes,
    )  # fmt: skip
    served.start(SESSION)
    changes.wait_for("bad", State.FAILED)
    assert not served.is_healthy
    served.stop()
    assert not served.is_running


def test_queries_that_somebody_else_stopped_are_started_again() -> None:
    changes = Changes()
    first = Query()
    served = PipelineService([Offline("one", first, Query())], "checkpoints", "1s", on_change=changes)
    served.start(SESSION)
    changes.wait_for("one", State.RUNNING)
    first.stop()
    changes.wait_for("one", State.RUNNING, 2)
    served.stop()


def stop_in_thread(query: Query, timeout: float) -> threading.Thread:
    thread = threading.Thread(target=stop_after_batch, args=([query], timeout), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("end", ["idle", "next batch"])
def test_a_stop_waits_for_the_end_of_the_batch(end: str) -> None:
    query = Query(busy=True)
    thread = stop_in_thread(query, 100 * PATIENCE_S)
    assert query.asked.wait(PATIENCE_S)
    query.asked.clear()
    assert query.asked.wait(PATIENCE_S)
    assert not query.stopped.is_set()
    if end == "idle":
        query.busy = False
    else:
        query.triggers += 1
    thread.join(PATIENCE_S)
    assert query.stopped.is_set()


def test_a_batch_that_takes_too_long_is_stopped() -> None:
    query = Query(busy=True)
    stop_in_thread(query, 0.01).join(PATIENCE_S)
    assert query.stopped.is_set()


def test_pipelines_that_cannot_be_served_are_refused() -> None:
    one = Offline("one")
    for pipelines, trigger, text in (
        ([one, Offline("one")], "1s", "two pipelines are called one"),
        ([], "1s", "1 to 100 pipelines, not 0"),
        ([one], "available_now", "name an interval"),
        ([one], "soon", "trigger must be"),
    ):
        with pytest.raises(BadPipeline, match=text):
            PipelineService(pipelines, "checkpoints", trigger)
