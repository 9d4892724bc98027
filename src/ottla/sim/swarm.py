"""Many seeds over many processes, and their sums.

Zone: real. This module only distributes the seeds; `runner.py` runs one, and does not depend on processes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice

from ottla.sim.clients.runner import ClientResult
from ottla.sim.cluster.runner import ClusterOptions, ClusterResult, run_cluster
from ottla.sim.runner import Options, Result, run_broker
from ottla.sim.security.runner import SecurityResult
from ottla.sim.transactions.runner import TransactionResult
from ottla.sim.world import SECOND


def run_seed(seed: int, options: Options | ClusterOptions) -> Result:
    """Run one seed of one broker, or of a cluster. An exception has a note that names the seed."""
    began = time.process_time()
    with _garbage_kept():
        try:
            result = run_cluster(seed, options) if isinstance(options, ClusterOptions) else run_broker(seed, options)
        except Exception as error:
            error.add_note(f"in seed {seed}")
            raise
    result.processor_s = time.process_time() - began
    return result


@contextlib.contextmanager
def _garbage_kept() -> Iterator[None]:
    """Switch the garbage collector off during a run: its searches for dead cycles took a seventh of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def run_swarm(seeds: Iterable[int], options: Options | ClusterOptions, jobs: int | None = None) -> Iterator[Result]:
    """The results of the seeds, in the order of completion; in `jobs` processes (default: one per processor)."""
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        for seed in seeds:
            yield run_seed(seed, options)
        return
    remaining = iter(seeds)
    with ProcessPoolExecutor(jobs) as pool:
        # Two seeds per process wait at most: a swarm of a million seeds does not hold a million futures.
        running = {pool.submit(run_seed, seed, options) for seed in islice(remaining, 2 * jobs)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                # Those that end together are sorted, so that output differs between runs as little as possible.
                yield from sorted((future.result() for future in done), key=lambda result: result.seed)
                running |= _submit_more(pool, remaining, len(done), options)
        finally:
            # The caller may stop at the first failure: what has not begun does not begin.
            pool.shutdown(wait=False, cancel_futures=True)


def _submit_more(
    pool: ProcessPoolExecutor, seeds: Iterator[int], count: int, options: Options | ClusterOptions
) -> set[Future[Result]]:
    return {pool.submit(run_seed, seed, options) for seed in islice(seeds, count)}


@dataclass(slots=True)
class Coverage:
    """Sums over the seeds of a swarm."""

    seeds: int = 0
    not_counted: list[tuple[int, list[str]]] = field(default_factory=list)
    """Seeds that do not count, with the minimums that they did not reach."""
    failed: list[Result] = field(default_factory=list)
    simulated_ns: int = 0
    processor_s: float = 0.0
    events: int = 0
    acknowledged: int = 0
    read: int = 0
    recoveries: int = 0
    elections: int = 0
    excused: int = 0
    whole_losses: int = 0
    durable: int = 0
    commits: int = 0
    aborts: int = 0
    offset_commits: int = 0
    coordinator_changes: int = 0
    accepted: int = 0
    failed_records: int = 0
    retried: int = 0
    epochs: int = 0
    allowed: int = 0
    denied: int = 0
    acl_changes: int = 0
    renewed: int = 0
    expired: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    def add_result(self, result: Result) -> None:
        """Add one result."""
        self.seeds += 1
        self.simulated_ns += result.simulated_ns
        self.processor_s += result.processor_s
        self.events += result.events
        self.acknowledged += result.acknowledged
        self.read += result.read
        self.recoveries += result.recoveries
        if isinstance(result, ClusterResult):
            self.elections += result.elections
            self.excused += result.excused
            self.whole_losses += result.whole_losses
            self.durable += result.durable
        if isinstance(result, TransactionResult):
            self.commits += result.commits
            self.aborts += result.aborts
            self.offset_commits += result.offset_commits
            self.coordinator_changes += result.coordinator_changes
        if isinstance(result, ClientResult):
            self.accepted += result.accepted
            self.failed_records += result.failed
            self.retried += result.retried
            self.epochs += result.epochs
        if isinstance(result, SecurityResult):
            self.allowed += result.allowed
            self.denied += result.denied
            self.acl_changes += result.acl_changes
            self.renewed += result.renewed
            self.expired += result.expired
        for kind, count in result.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count
        if not result.ok:
            self.failed.append(result)
        # A failure counts whatever the run has covered; a run without one counts only if enough happened in it.
        elif result.unmet_minimums:
            self.not_counted.append((result.seed, result.unmet_minimums))

    @property
    def ok(self) -> bool:
        """Whether every seed kept every property."""
        return not self.failed

    @property
    def simulated_seconds(self) -> float:
        """Simulated time of all seeds."""
        return self.simulated_ns / SECOND
