"""The purgatory: where a request that cannot be answered yet waits for an event or its time-out.

Zone: deterministic. Keeps delayed operations, their watch keys and the one alarm; each operation (replication, groups,
…) knows what it waits for.

Defects: an operation that completes must send a response, and an action of `continue_after` is the second half of a
change, so an exception in either is HalfChanged (`ottla.changes`). An action of `look_after` begins something and can
be repeated: a defect before its first change is contained, and the action is called again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from ottla.changes import HalfChanged, half_changed
from ottla.purgatory.timing_wheel import Timer, TimingWheel
from ottla.seams import Clock

_NS_PER_MS = 1_000_000
ContainCallback = Callable[[Exception, Callable[[], None]], None]
"""Handles an exception of an action: (exception, action). Raises HalfChanged."""
AGAIN_MS: Final = 1000
"""Pause before an action of `look_after` is repeated after a defect."""
PURGE_INTERVAL = 1000
"""A key's list of watchers is swept of completed operations each time it has grown by this number (Kafka's value)."""


class DelayedOperation(Timer):
    """A request that waits. It completes exactly once: by an event (`try_complete`) or by its timeout."""

    __slots__ = ("completed",)

    def __init__(self) -> None:
        super().__init__()
        self.completed = False

    def force_complete(self) -> bool:
        """Complete now without a check of the condition. Returns False if it was completed before.

        Raises HalfChanged when `on_complete` fails: a request would be left without a response.
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

    def abandon_request(self) -> None:
        """Complete without a response, because the connection has ended."""
        self.completed = True
        self.cancel()

    def expire(self) -> None:
        """Complete because of the timeout. Raises HalfChanged."""
        if self.completed:
            return
        try:
            # First: it sets the error that `on_complete` sends.
            self.on_expire()
        except Exception as error:
            raise half_changed(type(self).__name__) from error
        self.force_complete()

    @abstractmethod
    def try_complete(self) -> bool:
        """Check the condition; if it holds, `force_complete()`. Returns whether the operation is complete."""

    @abstractmethod
    def on_complete(self) -> None:
        """Send the response."""

    def on_expire(self) -> None:
        """Called before `on_complete` when the timeout ended the wait."""


class After(Timer):
    """An action that is called once at a deadline, unless it is cancelled."""

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self._action = action

    def expire(self) -> None:
        """Call the action. Raises HalfChanged for any defect in it."""
        try:
            self._action()
        except HalfChanged:
            raise
        except Exception as error:
            raise half_changed(name_of_action(self._action)) from error


class Look(Timer):
    """An action that is called at a deadline, and again if it failed before it changed anything."""

    __slots__ = ("_action", "_contain", "_purgatory")

    def __init__(self, purgatory: Purgatory, action: Callable[[], None], contain: ContainCallback) -> None:
        super().__init__()
        self._purgatory = purgatory
        self._action = action
        self._contain = contain

    def expire(self) -> None:
        """Call the action; contain a defect, and retry. Raises HalfChanged."""
        try:
            self._action()
        except Exception as error:  # noqa: BLE001  # it has changed nothing, or whole changes only
            self._contain(error, self._action)
            self._try_again()

    def _try_again(self) -> None:
        self._purgatory.arm_timer(self, AGAIN_MS)


def name_of_action(action: Callable[[], None]) -> str:
    """The name of the function that an action is or was defined in, for log lines."""
    name: str = getattr(action, "__qualname__", type(action).__name__)
    return name.partition(".<locals>")[0]


def raise_callback_defect(error: Exception, _action: Callable[[], None]) -> None:
    """The default of `contain`: raise the exception."""
    raise error


class Purgatory:
    """Delayed operations by watch key and by deadline."""

    def __init__(self, clock: Clock, contain: ContainCallback = raise_callback_defect) -> None:
        """`contain` handles defects in actions of `look_after`."""
        self._contain = contain
        self._clock = clock
        self._wheel = TimingWheel(clock.now().mono_ns // _NS_PER_MS)
        self._watched: dict[Hashable, list[DelayedOperation]] = {}
        self._sweep_at: dict[Hashable, int] = {}
        self._alarm_ms: int | None = None

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Sequence[Hashable], timeout_ms: int) -> bool:
        """Complete at once if possible, else wait for an event on one of the keys, or for the timeout."""
        if operation.try_complete():
            return True
        # Register first, then arm: with a timeout of 0 the operation expires within `arm_timer`.
        for key in keys:
            self._watch_key(key, operation)
        self.arm_timer(operation, timeout_ms)
        return operation.completed

    def _watch_key(self, key: Hashable, operation: DelayedOperation) -> None:
        watchers = self._watched.setdefault(key, [])
        watchers.append(operation)
        # Operations that complete by timeout or on another key stay in the list until a sweep.
        if len(watchers) > self._sweep_at.get(key, PURGE_INTERVAL):
            watchers[:] = [each for each in watchers if not each.completed]
            self._sweep_at[key] = len(watchers) + PURGE_INTERVAL

    def arm_timer(self, timer: Timer, delay_ms: int) -> None:
        """Let a timer expire after `delay_ms` (at once, within this call, when that is 0). Raises HalfChanged."""
        deadline = self._clock.now().mono_ns // _NS_PER_MS + delay_ms
        try:
            waits = self._wheel.add_timer(timer, deadline)
            if waits and (self._alarm_ms is None or deadline < self._alarm_ms):
                self._set_alarm()
        except Exception as error:
            raise half_changed("a deadline") from error
        if not waits:
            timer.expire()

    def continue_after(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        """Continue a change later, in a turn of its own, in a millisecond at the earliest.

        An exception in the action stops the broker, because the change would stay half done.
        """
        timer = After(action)
        self.arm_timer(timer, max(1, delay_ms))
        return timer

    def look_after(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        """Call an action later, as `continue_after`, that can be repeated.

        After an exception before its first change, the action is called again in AGAIN_MS.
        """
        timer = Look(self, action, self._contain)
        self.arm_timer(timer, max(1, delay_ms))
        return timer

    def check_watchers(self, key: Hashable) -> int:
        """Let the watchers of `key` check their conditions after an event. Returns how many completed."""
        watchers = self._watched.get(key)
        if watchers is None:
            return 0
        # A copy: a completed operation may add watchers, and another one may complete meanwhile.
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

    def count_watchers(self, key: Hashable) -> int:
        """The number of operations that watch `key`, including completed ones that are not swept yet."""
        return len(self._watched.get(key, ()))

    def on_alarm(self) -> None:
        """Expire the timers that are due at the clock's alarm, and set the next alarm."""
        # Cleared first: a timer that expires may arm others, and those compare their deadlines with it.
        self._alarm_ms = None
        for timer in self._wheel.advance_to(self._clock.now().mono_ns // _NS_PER_MS):
            timer.expire()
        self._set_alarm()

    def _set_alarm(self) -> None:
        upcoming = self._wheel.next_ms()
        if upcoming != self._alarm_ms:
            self._alarm_ms = upcoming
            self._clock.set_alarm(None if upcoming is None else upcoming * _NS_PER_MS)
