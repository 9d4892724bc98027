"""The purgatory: where a request that cannot be answered yet waits for an event or its time-out.

Zone: deterministic. Delayed operations, their watch keys and the one alarm live here; what an operation waits for is
its own business (replication, groups, …).

What a defect costs: an operation that completes owes an answer, and an action of `after` is the rest of something that
has begun, so an exception in either is HalfChanged (`ottla.changes`). An action of `look_after` begins something and
may be called again: a defect before its first change costs this call, is contained, and it is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

from ottla.changes import HalfChanged, half_changed
from ottla.purgatory.timing_wheel import Timer, TimingWheel
from ottla.seams import Clock

_NS_PER_MS = 1_000_000
ContainCallback = Callable[[Exception, Callable[[], None]], None]
"""Takes what an action raised, and the action. Raises HalfChanged."""
AGAIN_MS: Final = 1000
"""After a defect an action of `look_after` is called again after this time."""
PURGE_INTERVAL = 1000
"""Watchers of completed operations are swept from a key's list when it has grown by so many."""


class DelayedOperation(Timer):
    """A request that waits. It completes exactly once: by an event (`try_complete`) or by its time-out."""

    __slots__ = ("completed",)

    def __init__(self) -> None:
        super().__init__()
        self.completed = False

    def complete(self) -> bool:
        """Finish now, whatever the condition says. False if it was finished before.

        Raises HalfChanged when `on_complete` fails: a request would be left without an answer.
        """
        if self.completed:
            return False
        self.completed = True
        self.cancel()
        try:
            self.on_complete()
        except HalfChanged:
            raise
        except Exception as error:
            raise half_changed(type(self).__name__) from error
        return True

    def abandon(self) -> None:
        """Finish without an answer: the client is gone."""
        self.completed = True
        self.cancel()

    def expire(self) -> None:
        """The time-out. Raises HalfChanged."""
        if self.completed:
            return
        try:
            self.on_expire()
        except Exception as error:
            raise half_changed(type(self).__name__) from error
        self.complete()

    def try_complete(self) -> bool:
        """Check the condition; if it holds, `complete()`. Returns whether the operation is finished."""
        raise AssertionError("a delayed operation says what it waits for")

    def on_complete(self) -> None:
        """Answer the request."""
        raise AssertionError("a delayed operation says how it answers")

    def on_expire(self) -> None:
        """Called before `on_complete` when the time-out ended the wait."""


class After(Timer):
    """Something to be done at a time; `cancel` takes it back."""

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self._action = action

    def expire(self) -> None:
        """The time has come. Raises HalfChanged."""
        try:
            self._action()
        except HalfChanged:
            raise
        except Exception as error:
            raise half_changed(name_of_action(self._action)) from error


class Look(Timer):
    """Something that is begun at a time, and again where it failed before it changed anything."""

    __slots__ = ("_action", "_contain", "_purgatory")

    def __init__(self, purgatory: Purgatory, action: Callable[[], None], contain: ContainCallback) -> None:
        super().__init__()
        self._purgatory = purgatory
        self._action = action
        self._contain = contain

    def expire(self) -> None:
        """The time has come. Raises HalfChanged."""
        try:
            self._action()
        except Exception as error:  # noqa: BLE001  # it has changed nothing, or whole changes only
            self._contain(error, self._action)
            self._try_again()

    def _try_again(self) -> None:
        self._purgatory.arm(self, AGAIN_MS)


def name_of_action(action: Callable[[], None]) -> str:
    """For people: the function that an action is or was made in."""
    name: str = getattr(action, "__qualname__", type(action).__name__)
    return name.partition(".<locals>")[0]


def raise_callback_defect(error: Exception, _action: Callable[[], None]) -> None:
    """Where nothing contains defects."""
    raise error


class Purgatory:
    """Delayed operations, watched by key and by deadline."""

    def __init__(self, clock: Clock, contain: ContainCallback = raise_callback_defect) -> None:
        """`contain`: makes a defect in an action of `look_after` cost that call only."""
        self._contain = contain
        self._clock = clock
        self._wheel = TimingWheel(clock.now().mono_ns // _NS_PER_MS)
        self._watched: dict[Hashable, list[DelayedOperation]] = {}
        self._sweep_at: dict[Hashable, int] = {}
        self._alarm_ms: int | None = None

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Sequence[Hashable], timeout_ms: int) -> bool:
        """Complete at once if possible, else wait for an event on one of the keys, or for the time-out."""
        if operation.try_complete():
            return True
        for key in keys:
            self._watch(key, operation)
        self.arm(operation, timeout_ms)
        return operation.completed

    def _watch(self, key: Hashable, operation: DelayedOperation) -> None:
        watchers = self._watched.setdefault(key, [])
        watchers.append(operation)
        if len(watchers) > self._sweep_at.get(key, PURGE_INTERVAL):
            watchers[:] = [each for each in watchers if not each.completed]
            self._sweep_at[key] = len(watchers) + PURGE_INTERVAL

    def arm(self, timer: Timer, delay_ms: int) -> None:
        """Let a timer expire after `delay_ms` (at once, within this call, when that is 0). Raises HalfChanged."""
        deadline = self._clock.now().mono_ns // _NS_PER_MS + delay_ms
        try:
            waits = self._wheel.add(timer, deadline)
            if waits and (self._alarm_ms is None or deadline < self._alarm_ms):
                self._set_alarm()
        except Exception as error:
            raise half_changed("a deadline") from error
        if not waits:
            timer.expire()

    def after(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        """Go on with something later, in a turn of its own: at the earliest in a millisecond.

        An exception in it stops the broker: what has begun would stay half done.
        """
        timer = After(action)
        self.arm(timer, max(1, delay_ms))
        return timer

    def look_after(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        """Begin something later, as with `after`, that may be begun again.

        An exception before its first change costs this call; the action is called again after AGAIN_MS.
        """
        timer = Look(self, action, self._contain)
        self.arm(timer, max(1, delay_ms))
        return timer

    def check(self, key: Hashable) -> int:
        """An event on `key`: let its watchers look again. Returns how many completed."""
        watchers = self._watched.get(key)
        if watchers is None:
            return 0
        completed = sum([each.try_complete() for each in list(watchers) if not each.completed])
        self._forget_completed(key)
        return completed

    def _forget_completed(self, key: Hashable) -> None:
        left = [each for each in self._watched.get(key, ()) if not each.completed]
        if left:
            self._watched[key] = left
        else:
            self._watched.pop(key, None)
            self._sweep_at.pop(key, None)

    def watched(self, key: Hashable) -> int:
        """How many operations watch `key` (finished ones included until they are swept)."""
        return len(self._watched.get(key, ()))

    def on_alarm(self) -> None:
        """The clock's alarm: expire what is due and ask for the next one."""
        self._alarm_ms = None
        for timer in self._wheel.advance(self._clock.now().mono_ns // _NS_PER_MS):
            timer.expire()
        self._set_alarm()

    def _set_alarm(self) -> None:
        upcoming = self._wheel.next_ms()
        if upcoming != self._alarm_ms:
            self._alarm_ms = upcoming
            self._clock.alarm(None if upcoming is None else upcoming * _NS_PER_MS)
