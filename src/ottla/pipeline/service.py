"""Several pipelines as a service: each is started again when it fails, and none stops another.

Zone: real. One thread supervises one pipeline; all share one Spark session. `supervision` decides.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ottla.http_pages import Access, Page, PageThread, add_process_metrics, json_page, metrics_page
from ottla.metrics import Labels, Registry
from ottla.pipeline.definitions.definition import MAX_PIPELINES
from ottla.pipeline.errors import BadPipeline
from ottla.pipeline.pipeline import Pipeline, Running
from ottla.pipeline.progress import StepProgress
from ottla.pipeline.queries import trigger_of
from ottla.pipeline.supervision import State, Supervision

STOP_S: Final = 60.0
"""How long a stop waits for the batches that are running."""
_LOOK_S: Final = 0.5
_LOG = logging.getLogger(__name__)


class ServedPipeline:
    """One pipeline of a service, and its thread.

    load: makes the pipeline before each start; its errors are those of the start. trigger: an interval such as 5s.
    """

    def __init__(self, name: str, load: Callable[[], Pipeline], trigger: str, supervision: Supervision) -> None:
        self.name = name
        self.load = load
        self.trigger = trigger
        self.supervision = supervision
        self.steps: list[StepProgress] = []
        """The figures of the present run, or of the last one."""
        self.stopping = threading.Event()
        self.stop_s = STOP_S
        """How long a stop waits for the batches that are running."""
        self.thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it is running or will be started again."""
        return self.thread is not None and self.thread.is_alive()

    def request_stop(self, timeout: float) -> None:
        """Have it stop when the batch that it is running has ended, at the latest after `timeout` seconds."""
        # Before the event: a thread that wakes reads the time at once.
        self.stop_s = min(timeout, self.stop_s) if self.stopping.is_set() else timeout
        self.stopping.set()

    def wait_for_stop(self) -> None:
        """Wait until its thread has ended."""
        if self.thread is not None:
            self.thread.join()

    def describe_state(self) -> dict[str, str | int | None]:
        """The state for a JSON document."""
        state = self.supervision
        return {"state": state.state.value, "restarts": state.restarts, "reason": state.reason}


class PipelineService:
    """Runs pipelines until `stop`, each with its checkpoint in a directory of its own.

    pipelines: those that `start` starts; None: `start_pipeline` adds them. checkpoint: the directory of their
    directories. trigger: an interval such as 5s. make_supervision: the rules for restarts. on_change: called in a
    pipeline's thread after each change of its state, with the seconds until it is started again; None: changes are
    logged.
    Raises BadPipeline for pipelines with one name, which would share their transactions.
    """

    def __init__(
        self,
        pipelines: Sequence[Pipeline] | None,
        checkpoint: str,
        trigger: str,
        make_supervision: Callable[[], Supervision] = Supervision,
        on_change: Callable[[ServedPipeline, float | None], None] | None = None,
    ) -> None:
        if pipelines is not None:
            _check_pipelines(pipelines)
        # Such a query ends after what is there, which supervision would take for a failure.
        if "availableNow" in trigger_of(trigger):
            raise BadPipeline("a service runs until it is stopped: name an interval such as 5s as the trigger")
        self._trigger = trigger
        # Replaced as a whole: the thread of the pages reads it while pipelines come and go.
        self.pipelines = tuple(
            ServedPipeline(each.name, partial(_loaded, each), trigger, make_supervision()) for each in pipelines or ()
        )
        self._checkpoint = checkpoint.rstrip("/")
        self._on_change = on_change
        self._spark: Any = None

    def start(self, spark: Any) -> None:
        """Start all pipelines; returns at once. spark: the session, also of those that are started later."""
        self._spark = spark
        for each in self.pipelines:
            self._start_thread(each)

    def start_pipeline(
        self, name: str, load: Callable[[], Pipeline], supervision: Supervision, trigger: str | None = None
    ) -> ServedPipeline:
        """Add a pipeline to those of a started service, and start it; returns at once. trigger: None: the service's."""
        served = ServedPipeline(name, load, trigger or self._trigger, supervision)
        self.pipelines = (*self.pipelines, served)
        self._start_thread(served)
        return served

    def add_pipeline(self, name: str, supervision: Supervision) -> ServedPipeline:
        """Show a pipeline that does not run, with the state of `supervision`."""
        served = ServedPipeline(name, _nothing_to_load, self._trigger, supervision)
        self.pipelines = (*self.pipelines, served)
        self._report(served, None)
        return served

    def remove_pipeline(self, served: ServedPipeline) -> None:
        """Show a pipeline no more. It must have stopped."""
        assert not served.is_alive
        self.pipelines = tuple(each for each in self.pipelines if each is not served)

    def _start_thread(self, served: ServedPipeline) -> None:
        name = f"pipeline-{served.name}"
        served.thread = threading.Thread(target=self._supervise, args=(served,), name=name, daemon=True)
        served.thread.start()

    @property
    def is_running(self) -> bool:
        """Whether a pipeline is running or will be started again."""
        return any(each.is_alive for each in self.pipelines)

    @property
    def is_healthy(self) -> bool:
        """Whether no pipeline is given up or fails again and again."""
        return all(each.supervision.is_healthy for each in self.pipelines)

    def stop(self, timeout: float = STOP_S) -> None:
        """Stop all pipelines, each when the batch that it is running has ended, at the latest after `timeout` seconds.

        Returns when they have stopped. Idempotent.
        """
        for each in self.pipelines:
            each.request_stop(timeout)
        for each in self.pipelines:
            each.wait_for_stop()

    def _supervise(self, each: ServedPipeline) -> None:
        """Run one pipeline, again and again, until it is to stop or is given up."""
        state = each.supervision
        while not each.stopping.is_set():
            state.on_starting()
            self._report(each, None)
            try:
                self._run_once(each)
            except Exception as error:  # noqa: BLE001 - whatever ends one pipeline must not end the others
                wait_s = state.on_failed(error, random.random())
                self._report(each, wait_s)
                if wait_s is None:
                    return
                # Not time.sleep: a stop ends the back-off.
                each.stopping.wait(wait_s)
        state.on_stopped()
        self._report(each, None)

    def _run_once(self, each: ServedPipeline) -> None:
        """Run a pipeline until it is to stop. Raises its error."""
        pipeline = each.load()
        running = pipeline.start(f"{self._checkpoint}/{each.name}", each.trigger, spark=self._spark)
        try:
            each.supervision.on_running()
            self._report(each, None)
            batches = 0
            # The steps are several queries: to wait for the end of one would miss that another one has failed.
            while not each.stopping.wait(_LOOK_S):
                if not running.alive:
                    running.wait()  # raises the reason
                    raise RuntimeError("its queries have ended without an error: their session was stopped")
                batches = self._take_figures(each, running, batches)
            running.stop_after_batch(each.stop_s)
            self._take_figures(each, running, batches)
        # Also after an error of one step: the other steps of the pipeline are still running.
        finally:
            running.stop()

    @staticmethod
    def _take_figures(each: ServedPipeline, running: Running, before: int) -> int:
        """Read the figures; the number of batches."""
        each.steps = running.progress()
        batches = sum(step.batches for step in each.steps)
        if batches > before:
            each.supervision.on_batch()
        return batches

    def _report(self, each: ServedPipeline, wait_s: float | None) -> None:
        state, name = each.supervision, each.name
        if self._on_change is not None:
            self._on_change(each, wait_s)
        elif state.state is State.FAILED:
            _LOG.error("pipeline %s has failed and is not started again: %s", name, state.reason)
        elif state.state is State.WAITING:
            _LOG.warning("pipeline %s has failed; starting it again in %.1f s: %s", name, wait_s, state.reason)
        else:
            _LOG.info("pipeline %s: %s", name, state.state.value)


def _loaded(pipeline: Pipeline) -> Pipeline:
    return pipeline


def _nothing_to_load() -> Pipeline:
    raise AssertionError("a pipeline that is only shown was started")


def _check_pipelines(pipelines: Sequence[Pipeline]) -> None:
    """Raises BadPipeline."""
    # Two pipelines of one name would fence each other: their transactional ids are made of it.
    names = [each.name for each in pipelines]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadPipeline(f"two pipelines are called {twice[0]}: the name is that of the group and the transactions")
    if not 1 <= len(pipelines) <= MAX_PIPELINES:
        raise BadPipeline(f"a service runs 1 to {MAX_PIPELINES} pipelines, not {len(pipelines)}")


def add_service_metrics(registry: Registry, pipelines: Callable[[], Iterable[ServedPipeline]]) -> None:
    """Declare the metrics of served pipelines; those of their queries are QueryMetrics'."""

    def states(*wanted: State) -> Callable[[], Iterator[tuple[Labels, float]]]:
        return lambda: (({"pipeline": each.name}, each.supervision.state in wanted) for each in pipelines())

    add = registry.add_gauge
    add("ottla_pipeline_running", "1 while all steps of the pipeline are running.", states(State.RUNNING))
    add("ottla_pipeline_failed", "1 if the pipeline was given up.", states(State.FAILED))
    add("ottla_pipeline_paused", "1 if the pipeline's definition in the cluster has it paused.", states(State.PAUSED))
    registry.add_counter(
        "ottla_pipeline_restarts_total",
        "Starts after a failure.",
        lambda: (({"pipeline": each.name}, each.supervision.restarts) for each in pipelines()),
    )


def serve_pages(
    service: PipelineService,
    registry: Registry,
    address: str,
    access: Access | None = None,
    definitions: Callable[[], Mapping[str, str | None]] | None = None,
) -> PageThread:
    """Serve /metrics and /health of a service. Raises ValueError for an address that is none, OSError.

    definitions: the state of what keeps the service as definitions in the cluster are; a key `error` is not None while
    that fails.
    """
    add_service_metrics(registry, lambda: service.pipelines)
    add_process_metrics(registry)

    async def health() -> Page:
        pipelines = {each.name: each.describe_state() for each in service.pipelines}
        followed = None if definitions is None else definitions()
        healthy = service.is_healthy and (followed is None or followed["error"] is None)
        found = {"status": "ready" if healthy else "failing", "pipelines": pipelines}
        more = {} if followed is None else {"definitions": followed}
        return json_page(200 if healthy else 503, {**found, **more})

    return PageThread({"/metrics": lambda: metrics_page(registry), "/health": health}, address, access)
