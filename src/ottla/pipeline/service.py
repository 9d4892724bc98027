"""Several pipelines as a service: each is started again when it fails, and none stops another.

Zone: real. One thread supervises one pipeline; all share one Spark session. `supervision` decides.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from ottla.http_pages import Access, Page, PageThread, add_process_metrics, json_page, metrics_page
from ottla.metrics import Labels, Registry
from ottla.pipeline.errors import BadPipeline
from ottla.pipeline.pipeline import Pipeline, Running
from ottla.pipeline.progress import StepProgress
from ottla.pipeline.queries import trigger_of
from ottla.pipeline.supervision import State, Supervision

MAX_PIPELINES: Final = 100
"""Each has a thread, and a query per step."""
STOP_S: Final = 60.0
"""How long a stop waits for the batches that are running."""
_LOOK_S: Final = 0.5
_LOG = logging.getLogger(__name__)


class ServedPipeline:
    """One pipeline of a service."""

    def __init__(self, pipeline: Pipeline, supervision: Supervision) -> None:
        self.pipeline = pipeline
        self.supervision = supervision
        self.steps: list[StepProgress] = []
        """The figures of the present run, or of the last one."""

    def describe_state(self) -> dict[str, str | int | None]:
        """The state for a JSON document."""
        state = self.supervision
        return {"state": state.state.value, "restarts": state.restarts, "reason": state.reason}


class PipelineService:
    """Runs pipelines until `stop`, each with its checkpoint in a directory of its own.

    checkpoint: the directory of these. trigger: an interval such as 5s. make_supervision: the rules for restarts.
    on_change: called in a pipeline's thread after each change of its state, with the seconds until it is started again;
    None: changes are logged.
    Raises BadPipeline for pipelines with one name, which would share their transactions.
    """

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        checkpoint: str,
        trigger: str,
        make_supervision: Callable[[], Supervision] = Supervision,
        on_change: Callable[[ServedPipeline, float | None], None] | None = None,
    ) -> None:
        # Two pipelines of one name would fence each other: their transactional ids are made of it.
        names = [each.name for each in pipelines]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadPipeline(
                f"two pipelines are called {twice[0]}: the name is that of the group and the transactions"
            )
        if not 1 <= len(pipelines) <= MAX_PIPELINES:
            raise BadPipeline(f"a service runs 1 to {MAX_PIPELINES} pipelines, not {len(pipelines)}")
        # Such a query ends after what is there, which supervision would take for a failure.
        if "availableNow" in trigger_of(trigger):
            raise BadPipeline("a service runs until it is stopped: name an interval such as 5s as the trigger")
        self.pipelines = [ServedPipeline(each, make_supervision()) for each in pipelines]
        self._checkpoint = checkpoint.rstrip("/")
        self._trigger = trigger
        self._on_change = on_change
        self._stopping = threading.Event()
        self._stop_s = STOP_S
        self._threads: list[threading.Thread] = []

    def start(self, spark: Any) -> None:
        """Start all pipelines; returns at once. spark: the session."""
        for each in self.pipelines:
            name = f"pipeline-{each.pipeline.name}"
            self._threads.append(threading.Thread(target=self._supervise, args=(each, spark), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def is_running(self) -> bool:
        """Whether a pipeline is running or will be started again."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def is_healthy(self) -> bool:
        """Whether no pipeline is given up or fails again and again."""
        return all(each.supervision.is_healthy for each in self.pipelines)

    def stop(self, timeout: float = STOP_S) -> None:
        """Stop all pipelines, each when the batch that it is running has ended, at the latest after `timeout` seconds.

        Returns when they have stopped. Idempotent.
        """
        # Before the event: a thread that wakes reads the time at once.
        self._stop_s = timeout
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _supervise(self, each: ServedPipeline, spark: Any) -> None:
        """Run one pipeline, again and again, until the service stops or the pipeline is given up."""
        state = each.supervision
        while not self._stopping.is_set():
            state.on_starting()
            self._report(each, None)
            try:
                self._run_once(each, spark)
            except Exception as error:  # noqa: BLE001 - whatever ends one pipeline must not end the others
                wait_s = state.on_failed(error, random.random())
                self._report(each, wait_s)
                if wait_s is None:
                    return
                # Not time.sleep: a stop ends the back-off.
                self._stopping.wait(wait_s)
        state.on_stopped()
        self._report(each, None)

    def _run_once(self, each: ServedPipeline, spark: Any) -> None:
        """Run a pipeline until the service stops. Raises its error."""
        running = each.pipeline.start(f"{self._checkpoint}/{each.pipeline.name}", self._trigger, spark=spark)
        try:
            each.supervision.on_running()
            self._report(each, None)
            batches = 0
            # The steps are several queries: to wait for the end of one would miss that another one has failed.
            while not self._stopping.wait(_LOOK_S):
                if not running.alive:
                    running.wait()  # raises the reason
                    raise RuntimeError("its queries have ended without an error: their session was stopped")
                batches = self._take_figures(each, running, batches)
            running.stop_after_batch(self._stop_s)
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
        state, name = each.supervision, each.pipeline.name
        if self._on_change is not None:
            self._on_change(each, wait_s)
        elif state.state is State.FAILED:
            _LOG.error("pipeline %s has failed and is not started again: %s", name, state.reason)
        elif state.state is State.WAITING:
            _LOG.warning("pipeline %s has failed; starting it again in %.1f s: %s", name, wait_s, state.reason)
        else:
            _LOG.info("pipeline %s: %s", name, state.state.value)


def add_service_metrics(registry: Registry, pipelines: Iterable[ServedPipeline]) -> None:
    """Declare the metrics of served pipelines; those of their queries are QueryMetrics'."""

    def states(*wanted: State) -> Callable[[], Iterator[tuple[Labels, float]]]:
        return lambda: (({"pipeline": each.pipeline.name}, each.supervision.state in wanted) for each in pipelines)

    add = registry.add_gauge
    add("ottla_pipeline_running", "1 while all steps of the pipeline are running.", states(State.RUNNING))
    add("ottla_pipeline_failed", "1 if the pipeline was given up.", states(State.FAILED))
    registry.add_counter(
        "ottla_pipeline_restarts_total",
        "Starts after a failure.",
        lambda: (({"pipeline": each.pipeline.name}, each.supervision.restarts) for each in pipelines),
    )


def serve_pages(service: PipelineService, registry: Registry, address: str, access: Access | None = None) -> PageThread:
    """Serve /metrics and /health of a service. Raises ValueError for an address that is none, OSError."""
    add_service_metrics(registry, service.pipelines)
    add_process_metrics(registry)

    async def health() -> Page:
        pipelines = {each.pipeline.name: each.describe_state() for each in service.pipelines}
        healthy = service.is_healthy
        return json_page(200 if healthy else 503, {"status": "ready" if healthy else "failing", "pipelines": pipelines})

    return PageThread({"/metrics": lambda: metrics_page(registry), "/health": health}, address, access)
