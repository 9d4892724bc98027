"""A machine and the broker processes that run on it, one after the other: turns, pauses, kills, power loss.

Zone: deterministic. Every input of a broker arrives through `Process.post_turn` as one turn. A process is discarded
when it dies; the drives of the machine stay.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from ottla.seams import Failure, Inputs
from ottla.sim.defects import Defects
from ottla.sim.disks.drive import Drive, JournalLoss
from ottla.sim.disks.inode import LossPattern
from ottla.sim.entropy import Streams
from ottla.sim.machines.clock import ProcessClock
from ottla.sim.world import MS, US, Action, Timeline

BACKGROUND_BUDGET_NS: Final = 2 * MS


class Killed(BaseException):
    """The process ended in the middle of a turn. Not an Exception, so that no broker code catches it."""


class Death(Enum):
    """How a process ends."""

    STOP = "stop"
    """Clean shutdown, completed."""
    KILL = "kill"
    """SIGKILL: the page cache survives."""
    POWER_LOSS = "power loss"
    CRASH = "crash"
    """An exception left a turn: always a violation."""


class Process:
    """One life of a broker. It runs one turn at a time, never one inside another."""

    def __init__(self, machine: Machine, life: int) -> None:
        self.machine = machine
        self.timeline: Timeline = machine.timeline
        self.life = life
        self.entropy: Streams = machine.streams.scoped_streams(f"life{life}")
        self.clock = ProcessClock(self)
        self.alive = True
        self.inputs: Inputs | None = None
        self.fuse: int | None = None
        """Disk operations until the process is killed in the middle of one; None: no kill is planned."""
        self.fuse_death = Death.KILL
        self.serving = False
        """Whether its broker was ready once."""
        self.on_resume: Action | None = None
        """A turn of the shell after a pause, before all turns that waited."""
        self._in_turn = False
        self._paused_until = 0
        self._backlog: list[tuple[str, Action, tuple[object, ...]]] = []
        self._background_due = False
        self._random = machine.streams.named_stream("schedule")

    @property
    def wall_skew_ms(self) -> int:
        """How far the wall time of its machine is ahead."""
        return self.machine.wall_skew_ms

    @property
    def is_paused(self) -> bool:
        """Whether its turns wait for the end of a pause."""
        return self.timeline.now_ns < self._paused_until or bool(self._backlog)

    # ---- turns ----

    def post_turn(self, delay_ns: int, kind: str, action: Action, *arguments: object) -> None:
        """Run a turn of this process after the delay, if it is still alive."""
        self.timeline.schedule_after(delay_ns, kind, self._on_turn_due, kind, action, arguments)

    def post_done(self, delay_ns: int, kind: str, done: Action, value: Callable[[], object]) -> None:
        """Deliver a completion as a separate turn. `value` is computed in that turn, and must not raise."""
        self.post_turn(delay_ns, kind, lambda: self.deliver_completion(done, value()))

    def deliver_completion(self, done: Action, value: object) -> None:
        """Within a turn: deliver a completion, then let the broker drain its effects."""
        done(value)
        if self.inputs is not None:
            self.run_callback(self.inputs.end_turn)

    def run_callback(self, callback: Action) -> None:
        """Within a turn: call the broker; a planned defect may strike."""
        if self.machine.defects is None:
            callback()
        else:
            self.machine.defects.run_callback(callback)

    def post_thread(self, delay_ns: int, kind: str, action: Action, *arguments: object) -> None:
        """Run a step of a thread of the shell, which is not a turn, if the process is still alive then."""
        self.timeline.schedule_after(delay_ns, kind, self._step_of_thread, action, arguments)

    def _step_of_thread(self, action: Action, arguments: tuple[object, ...]) -> None:
        if self.alive:
            action(*arguments)

    def _on_turn_due(self, kind: str, action: Action, arguments: tuple[object, ...]) -> None:
        if not self.alive:
            return
        # Until `_resume_turns` has posted the backlog, later inputs must not overtake it.
        if self.timeline.now_ns < self._paused_until or self._backlog:
            self._backlog.append((kind, action, arguments))
            return
        self.run_turn(action, *arguments)

    def run_turn(self, action: Action, *arguments: object) -> None:
        """Run one input to its end now, then offer idle time."""
        self._run_guarded(action, *arguments)
        self.ask_background()

    def _run_guarded(self, action: Action, *arguments: object) -> object:
        # 1. Killed: a planned death in the middle of the turn.
        # 2. Failure: fatal only while the broker starts.
        # 3. Any other exception: a violation, unless an injected defect may stop the broker.
        assert not self._in_turn, "a seam called back inside a call"
        self._in_turn = True
        try:
            return action(*arguments)
        except Killed:
            self.machine.end_process(self.fuse_death)
        except Failure as failure:
            self._on_failed(failure)
        except Exception as error:  # noqa: BLE001  any exception that leaves a turn is a violation
            defects = self.machine.defects
            if defects is not None and defects.may_stop_broker(error):
                self.machine.end_process(Death.KILL)
                return None
            self.machine.crashes.append(traceback.format_exc())
            self.machine.end_process(Death.CRASH)
        finally:
            self._in_turn = False
        return None

    def _on_failed(self, failure: Failure) -> None:
        """A Failure left a turn: it ends a start (the disk is full or broken); after the start it is a violation."""
        if self.serving:
            self.machine.crashes.append(traceback.format_exc())
            self.machine.end_process(Death.CRASH)
        else:
            self.timeline.trace_fact(f"node {self.machine.node} cannot start: {failure}")
            self.machine.end_process(Death.KILL)

    def ask_background(self) -> None:
        """Offer idle time soon, like an event loop that has nothing else to run."""
        if self.alive and self.inputs is not None and not self._background_due:
            self._background_due = True
            self.timeline.schedule_after(self._random.between(20 * US, 2 * MS), "background", self._offer_background)

    def _offer_background(self) -> None:
        self._background_due = False
        if not self.alive or self.inputs is None:
            return
        if self.timeline.now_ns < self._paused_until:
            self._background_due = True
            self.timeline.schedule_at(self._paused_until, "background", self._offer_background)
        elif self._run_guarded(self.inputs.run_background, BACKGROUND_BUDGET_NS):
            self.ask_background()

    # ---- faults ----

    def burn_fuse(self) -> None:
        """Count one disk operation towards a planned kill. Raises Killed."""
        if not self.alive:
            raise Killed
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise Killed

    def pause_until(self, until_ns: int) -> None:
        """SIGSTOP until that time; inputs that arrive meanwhile are handled afterwards, in order."""
        self._paused_until = max(self._paused_until, until_ns)
        self.timeline.schedule_at(self._paused_until, "resume", self._resume_turns)

    def _resume_turns(self) -> None:
        if self.timeline.now_ns < self._paused_until or not self.alive:
            return
        if self.on_resume is not None:
            self.run_turn(self.on_resume)
        backlog, self._backlog = self._backlog, []
        for kind, action, arguments in backlog:
            self.timeline.schedule_after(0, kind, self._on_turn_due, kind, action, arguments)


class Machine:
    """A computer that runs one broker at a time."""

    def __init__(self, node: int, timeline: Timeline, streams: Streams, drives: Sequence[Drive]) -> None:
        self.node = node
        self.timeline = timeline
        self.streams = streams
        self.drives = drives
        self.process: Process | None = None
        self.lives = 0
        self.crashes: list[str] = []
        """Tracebacks of exceptions that left a turn."""
        self.defects: Defects | None = None
        """Raises exceptions in the code of the broker; None: the run has no defects."""
        self.wall_skew_ms = 0
        self.deaths: dict[Death, int] = dict.fromkeys(Death, 0)
        self.on_end: list[Callable[[Process, Death], None]] = []
        """Called with every death, before its effect on the drives."""
        self.loss = (LossPattern.EACH, JournalLoss.EACH)
        """What the next power loss does to pages and to names."""

    def boot_process(self) -> Process:
        """Start a new process, without a broker yet."""
        assert self.process is None
        self.lives += 1
        self.process = Process(self, self.lives)
        return self.process

    def end_process(self, death: Death) -> None:
        """End the process now, and apply the effect of that death to the drives."""
        process = self.process
        assert process is not None
        process.alive = False
        self.process = None
        self.deaths[death] += 1
        self.timeline.trace_fact(f"node {self.node} {death.value}")
        for told in self.on_end:
            told(process, death)
        for drive in self.drives:
            drive.on_process_gone()
        if death is Death.POWER_LOSS:
            self.power_loss()

    def power_loss(self) -> None:
        """Take everything that is not durable from the drives, while no process runs."""
        assert self.process is None
        for drive in self.drives:
            drive.power_loss(*self.loss, self.streams.named_stream("disk"))
