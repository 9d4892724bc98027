"""Readiness of connections: the selector under the asyncio loop, which calls client connections directly.

Zone: real. asyncio makes a handle and runs a context for every ready socket, which costs a tenth of a small request.
This selector calls a connection as soon as the kernel reports it as ready, and returns the other descriptors to
asyncio, which still handles timers, threads, signals and listeners.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Protocol

from ottla.server.loop.call_order import LONG_NS, QUICK_NS, Precedence, ReadyEvent

EVENTS: Final = 128
"""Ready sockets served before timers and completions get their turn."""
CROWD: Final = 50
"""With at least this many connections the next request has probably come when one is served: the selector polls the
kernel again, which costs a sixth of a round of asyncio."""
FEW: Final = 8
"""Connections served by such polls before asyncio gets its turn."""
TIMED: Final = 3
"""With at least this many connections ready together, their time is measured …"""
STRIDE: Final = 4
"""… after every STRIDE of them."""

_STEADY: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
_HAS_EPOLL: Final = hasattr(select, "epoll")
_IN: Final[int] = getattr(select, "EPOLLIN", 1)
_OUT: Final[int] = getattr(select, "EPOLLOUT", 4)

Callback = Callable[[], None]


class Watch(Protocol):
    """Calls back while a descriptor can be read or written. Level-triggered."""

    def watch_read(self, fd: int, callback: Callback) -> None:
        """Call back while there are bytes to read, or the end, or an error."""
        ...

    def unwatch_read(self, fd: int) -> None:
        """Stop calling back for reading; does nothing if it was not requested."""
        ...

    def watch_write(self, fd: int, callback: Callback) -> None:
        """Call back while there is room to write."""
        ...

    def unwatch_write(self, fd: int) -> None:
        """Stop calling back for writing; does nothing if it was not requested."""
        ...

    def on_served(self, waiting: Collection[Any], callback: Callback) -> None:
        """Call back after the connections that were ready together have been called, if `waiting` is not empty."""
        ...

    def on_standstill(self, longest_ns: int, callback: Callback) -> None:
        """Call back before any connection when no call was made for that long: the process was stopped, or very busy.

        Works only where a timer wakes the loop more often than that.
        """
        ...


def steady_ns() -> int:
    """Nanoseconds of a clock that also runs while the machine sleeps, where the system has one."""
    return time.clock_gettime_ns(_STEADY) if _STEADY is not None else time.monotonic_ns()


def new_loop() -> tuple[asyncio.AbstractEventLoop, Watch]:
    """An event loop, and the watch for its connections."""
    if not _HAS_EPOLL:
        plain = asyncio.new_event_loop()
        return plain, LoopWatch(plain)
    poller = Poller()
    loop = asyncio.SelectorEventLoop(poller)
    poller.set_loop(loop)
    return loop, poller


class LoopWatch:
    """The watch for systems without epoll: asyncio calls every connection, each of them a round of its own."""

    __slots__ = ("_loop", "_served", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: Collection[Any] = ()
        self._served: Callback = _do_nothing

    def watch_read(self, fd: int, callback: Callback) -> None:
        """See Watch."""
        self._loop.add_reader(fd, self._call_reader, callback)

    def _call_reader(self, callback: Callback) -> None:
        callback()
        if self._waiting:
            self._served()

    def unwatch_read(self, fd: int) -> None:
        """See Watch."""
        self._loop.remove_reader(fd)

    def watch_write(self, fd: int, callback: Callback) -> None:
        """See Watch."""
        self._loop.add_writer(fd, callback)

    def unwatch_write(self, fd: int) -> None:
        """See Watch."""
        self._loop.remove_writer(fd)

    def on_served(self, waiting: Collection[Any], callback: Callback) -> None:
        """See Watch."""
        self._waiting, self._served = waiting, callback

    def on_standstill(self, longest_ns: int, callback: Callback) -> None:
        """See Watch. Does nothing: asyncio does not allow a call before all others."""


class _Keys(Mapping[Any, selectors.SelectorKey]):
    """asyncio's keys, found by descriptor or by socket."""

    def __init__(self, keys: dict[int, selectors.SelectorKey]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __getitem__(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_descriptor_of(fileobj)]


class Poller(selectors.BaseSelector):
    """One epoll for asyncio's descriptors and for the connections."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """clock: monotonic, ns."""
        self._clock = clock
        self._precedence: Precedence | None = None
        """The order in which connections are called, while some take long; else None."""
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._map = _Keys(self._keys)
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stood_still: Callback | None = None
        self._longest_ns = self._seen_ns = 0
        self._waiting: Collection[Any] = ()
        self._served: Callback = _do_nothing

    def set_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop, whose exception handler receives the exceptions of callbacks."""
        self._loop = loop

    # -- Watch -----------------------------------------------------------------------------------------------------

    def watch_read(self, fd: int, callback: Callback) -> None:
        """See Watch."""
        known = fd in self._readers or fd in self._writers
        self._readers[fd] = callback
        self._apply_descriptor(fd, known)

    def unwatch_read(self, fd: int) -> None:
        """See Watch."""
        if self._readers.pop(fd, None) is not None:
            self._apply_descriptor(fd, True)

    def watch_write(self, fd: int, callback: Callback) -> None:
        """See Watch."""
        known = fd in self._readers or fd in self._writers
        self._writers[fd] = callback
        self._apply_descriptor(fd, known)

    def unwatch_write(self, fd: int) -> None:
        """See Watch."""
        if self._writers.pop(fd, None) is not None:
            self._apply_descriptor(fd, True)

    def on_served(self, waiting: Collection[Any], callback: Callback) -> None:
        """See Watch."""
        self._waiting, self._served = waiting, callback

    def on_standstill(self, longest_ns: int, callback: Callback) -> None:
        """See Watch."""
        self._longest_ns, self._seen_ns, self._stood_still = longest_ns, steady_ns(), callback

    def _check_standstill(self) -> None:
        now, before = steady_ns(), self._seen_ns
        self._seen_ns = now
        if now - before >= self._longest_ns and self._stood_still is not None:
            self._stood_still()

    def _apply_descriptor(self, fd: int, known: bool) -> None:
        mask = (_IN if fd in self._readers else 0) | (_OUT if fd in self._writers else 0)
        if not mask:
            self._epoll.unregister(fd)
            if self._precedence is not None:
                self._precedence.forget_connection(fd)
        elif known:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)

    # -- asyncio's selector interface --------------------------------------------------------------------------------

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Add one of asyncio's descriptors."""
        key = selectors.SelectorKey(fileobj, _descriptor_of(fileobj), events, data)
        self._epoll.register(key.fd, _epoll_mask(events))
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Remove one of asyncio's descriptors."""
        key = self._keys.pop(_descriptor_of(fileobj))
        self._epoll.unregister(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Change the events of one of asyncio's descriptors."""
        key = selectors.SelectorKey(fileobj, _descriptor_of(fileobj), events, data)
        self._epoll.modify(key.fd, _epoll_mask(events))
        self._keys[key.fd] = key
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait; call the connections that are ready; return those of asyncio's descriptors that are."""
        wait = -1.0
        if timeout is not None:
            # Rounded up to whole milliseconds: rounding down would spin until a timer is due.
            wait = max(0, math.ceil(timeout * 1e3)) * 1e-3
        theirs: list[tuple[selectors.SelectorKey, int]] = []
        readers, waiting = self._readers, self._waiting
        events = self._epoll.poll(wait, EVENTS)
        guarded = self._stood_still is not None
        try:
            if guarded:
                self._check_standstill()
            # 1. Some connections take long: quick ones first, one slow one per poll.
            if self._precedence is not None:
                self._call_in_order(self._precedence, events, theirs)
                return theirs
            # 2. Few are ready: call them without measuring, which would cost more than it can save.
            # 3. Several are ready: measure, and change to case 1 when they take long.
            served = 0 if len(readers) >= CROWD else FEW
            while events:
                if len(events) < TIMED:
                    for fd, event in events:
                        if guarded:
                            self._check_standstill()
                        if event == _IN and fd in readers:
                            readers[fd]()
                        elif fd in self._keys:
                            theirs.append((self._keys[fd], _selector_events(event)))
                        else:
                            self._call_for_events(fd, event)
                            served = FEW  # a writer stays ready while its peer reads: asyncio must get its turn
                elif not self._call_timed(events, theirs):
                    served = FEW
                if waiting:
                    self._served()
                served += len(events)
                if theirs or served >= FEW:
                    break
                events = self._epoll.poll(0, EVENTS)
        except Exception as error:  # noqa: BLE001 - as asyncio does: the loop's exception handler decides
            assert self._loop is not None, "not connected to a loop"
            self._loop.call_exception_handler({"message": "a connection's callback failed", "exception": error})
            if waiting:  # answers of the connections that were called before the failed one
                self._loop.call_soon(self._served)
        return theirs

    def _call_timed(self, events: list[ReadyEvent], theirs: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """Call connections until they take long; returns whether the sockets may be polled again at once."""
        readers, guarded, again = self._readers, self._stood_still is not None, True
        began = self._clock()
        for at in range(0, len(events), STRIDE):
            for fd, event in events[at : at + STRIDE]:
                if guarded:
                    self._check_standstill()
                if event == _IN and fd in readers:
                    readers[fd]()
                elif fd in self._keys:
                    theirs.append((self._keys[fd], _selector_events(event)))
                else:
                    self._call_for_events(fd, event)
                    again = False
            now = self._clock()
            # Longer than LONG_NS beyond what quick connections would take: some of these are slow, and it is not
            # known which. Those that were not ready are known to be innocent. The rest is polled again, in order.
            if now - began > LONG_NS + (at + STRIDE) * QUICK_NS:
                ready = {fd for fd, _ in events}
                self._precedence = Precedence(now, (fd for fd in readers if fd not in ready))
                return False
        return again

    def _call_in_order(
        self, precedence: Precedence, events: list[ReadyEvent], theirs: list[tuple[selectors.SelectorKey, int]]
    ) -> None:
        """Call quick connections and one slow one; append the ready descriptors of asyncio to `theirs`."""
        # asyncio's descriptors have no callback to time here, and asyncio calls them when this poll returns.
        theirs += [(self._keys[fd], _selector_events(event)) for fd, event in events if fd in self._keys]
        ours = [event for event in events if event[0] not in self._keys]
        now = self._clock()
        for fd, event in precedence.arrange_calls(ours, len(events) < EVENTS):
            if self._stood_still is not None:
                self._check_standstill()
            self._call_for_events(fd, event)
            # After a long call the sockets are polled again: quick connections may have become ready meanwhile.
            before, now = now, self._clock()
            if not precedence.record_call(fd, now - before, now):
                break
        if self._waiting:
            self._served()
        if precedence.is_over(now):
            self._precedence = None

    def _call_for_events(self, fd: int, event: int) -> None:
        """Call for writing, the end of a connection and errors. A descriptor that an earlier callback has closed is
        not in the tables any more."""
        if event & ~_IN and fd in self._writers:
            self._writers[fd]()
        if event & ~_OUT and fd in self._readers:
            self._readers[fd]()

    def close(self) -> None:
        """Close the epoll: the loop has ended."""
        self._epoll.close()
        self._keys.clear()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """asyncio's descriptors."""
        return self._map


def _do_nothing() -> None:
    """The end of a round while no receiver is set."""


def _descriptor_of(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


def _epoll_mask(events: int) -> int:
    return (_IN if events & selectors.EVENT_READ else 0) | (_OUT if events & selectors.EVENT_WRITE else 0)


def _selector_events(event: int) -> int:
    """asyncio's mask for an event of epoll. The end of a connection and errors count as readable and writable: the
    callback finds out by its system call."""
    return (selectors.EVENT_READ if event & ~_OUT else 0) | (selectors.EVENT_WRITE if event & ~_IN else 0)
