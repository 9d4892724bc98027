"""What clients and addresses have used, and how long they must wait.

Zone: deterministic. Nothing here waits: a caller answers, puts the time into `throttle_time_ms`, and does not read from
the connection meanwhile. The memory is bounded, because clients choose their client ids and may have many addresses:
the rate that was not used for the longest time is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from ottla.security.quotas.client_quotas import Limit
from ottla.security.quotas.rates import SampledRate, TokenBucket, Windows, throttle_ms

RATES_MAX: Final = 10_000
"""Most rates of one kind."""
SHOWN_MAX: Final = 200
"""Most rates of one kind in /metrics: those that were used last."""
UNLIMITED: Final = 2**31 - 1
"""A number of connections per second that is not a limit, as in Kafka."""
_Rate = TypeVar("_Rate")


class _RateTable(Generic[_Rate]):
    """Rates by owner; the ones used last are kept."""

    def __init__(self, make_rate: Callable[[], _Rate]) -> None:
        self._make_rate = make_rate
        self._rates: OrderedDict[Hashable, _Rate] = OrderedDict()

    def rate_of(self, owner: Hashable) -> _Rate:
        rate = self._rates.get(owner)
        if rate is None:
            rate = self._rates[owner] = self._make_rate()
            if len(self._rates) > RATES_MAX:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(owner)
        return rate

    def newest(self) -> list[tuple[Hashable, _Rate]]:
        """The rates that were used last, at most SHOWN_MAX."""
        return list(islice(reversed(self._rates.items()), SHOWN_MAX))


class ClientRates:
    """Rates of clients for one quota: bytes produced, bytes consumed, or the share of a thread's time.

    The last is recorded as a percentage: nanoseconds times 100 / 10^9.
    """

    def __init__(self, windows: Windows, *, waits_one_window: bool = False) -> None:
        """waits_one_window: whether a client waits for one window at most, as for the request percentage in Kafka."""
        self._windows = windows
        self._max_ms = windows.size_ms if waits_one_window else UNLIMITED
        self._rates = _RateTable(lambda: SampledRate(windows))

    def record_use(self, limit: Limit, value: float, now_ms: int) -> int:
        """Record what a client used; returns how long it must wait, in ms."""
        if limit.bound is None:
            return 0
        rate = self._rates.rate_of(limit.shared_by)
        rate.record(value, now_ms)
        return throttle_ms(rate, limit.bound, now_ms, self._max_ms)

    def take_back(self, limit: Limit, value: float, now_ms: int) -> None:
        """Undo a record: the response of a fetch that must wait is empty, so its bytes are not sent."""
        if limit.bound is not None:
            self._rates.rate_of(limit.shared_by).record(-value, now_ms)

    def measured(self, now_ms: int) -> Iterator[tuple[Hashable, float]]:
        """Who used how much per second lately: (user, client id), rate."""
        return ((owner, rate.measure(now_ms)) for owner, rate in self._rates.newest())

    def most_at_once(self, limit: Limit) -> float | None:
        """The most that one request may use; None: not limited. More would be a wait that no request comes out of."""
        if limit.bound is None:
            return None
        # As in Kafka (`getMaxValueInQuotaWindow`): the rate is averaged over at least that many windows, so more at
        # once is certain to exceed the quota.
        return limit.bound * (self._windows.samples - 1) * self._windows.size_ms / 1000


class ThrottleTimes:
    """The average times that clients had to wait for one quota."""

    def __init__(self, windows: Windows) -> None:
        self._sums = _RateTable(lambda: (SampledRate(windows), SampledRate(windows)))

    def record_wait(self, limit: Limit, time_ms: int, now_ms: int) -> None:
        """Record that a request had to wait."""
        times, count = self._sums.rate_of(limit.shared_by)
        times.record(time_ms, now_ms)
        count.record(1, now_ms)

    def measured(self, now_ms: int) -> Iterator[tuple[Hashable, float]]:
        """Who waited how long lately: (user, client id), average in ms."""
        for owner, (times, count) in self._sums.newest():
            number = count.measure(now_ms)
            yield owner, times.measure(now_ms) / number if number else 0.0


class MutationRates:
    """Creations and deletions of partitions: a token bucket for each client (KIP-599)."""

    def __init__(self, windows: Windows) -> None:
        self._buckets = _RateTable(lambda: TokenBucket(windows))

    def admit_mutations(self, limit: Limit, partitions: float, now_ms: int) -> int:
        """Record mutations if none must wait; else returns how long: THROTTLING_QUOTA_EXCEEDED (newer versions)."""
        if limit.bound is None:
            return 0
        bucket = self._buckets.rate_of(limit.shared_by)
        wait_ms = bucket.throttle_ms(limit.bound, now_ms)
        if not wait_ms:
            bucket.record(partitions, limit.bound, now_ms)
        return wait_ms

    def record_mutations(self, limit: Limit, partitions: float, now_ms: int) -> int:
        """Record mutations in any case; returns how long the client must wait after them (older versions)."""
        if limit.bound is None:
            return 0
        bucket = self._buckets.rate_of(limit.shared_by)
        bucket.record(partitions, limit.bound, now_ms)
        return bucket.throttle_ms(limit.bound, now_ms)


class ConnectionLimits(NamedTuple):
    """The limits for one new connection, per second."""

    broker: int | None = UNLIMITED
    """`max.connection.creation.rate`; None: a connection at the listener between brokers, which does not count."""
    listener: int = UNLIMITED
    """The same key with the prefix of the listener."""
    address: float | None = None
    """The quota of the address."""


class Admission(NamedTuple):
    """What to do with a new connection."""

    pause_ms: int = 0
    """How long the listener accepts no other connection."""
    refuse_ms: int = 0
    """0: the connection is served. Otherwise it is not, and is closed after this time."""


class ConnectionRates:
    """Creation of connections, by broker, listener and address (KIP-612)."""

    def __init__(self, windows: Windows) -> None:
        self._window_ms = windows.size_ms
        self._broker = SampledRate(windows)
        self._listeners = _RateTable(lambda: SampledRate(windows))
        self._addresses = _RateTable(lambda: SampledRate(windows))

    def admit_connection(self, listener: str, address: str, limits: ConnectionLimits, now_ms: int) -> Admission:
        """Record a connection. No wait is longer than one window."""
        shared = [(self._listeners.rate_of(listener), limits.listener)]
        if limits.broker is not None:
            shared.append((self._broker, limits.broker))
        pause_ms = max(self._record_connection(rate, bound, now_ms) for rate, bound in shared)
        if limits.address is None:
            return Admission(pause_ms)
        rate = self._addresses.rate_of(address)
        refuse_ms = self._record_connection(rate, limits.address, now_ms)
        if refuse_ms:
            # A refused connection counts nowhere: else an address that keeps trying would take the rate of others.
            for each in (rate, *(each for each, _ in shared)):
                each.record(-1, now_ms)
        return Admission(pause_ms, refuse_ms)

    def _record_connection(self, rate: SampledRate, bound: float, now_ms: int) -> int:
        rate.record(1, now_ms)
        if bound >= UNLIMITED:
            return 0
        return throttle_ms(rate, bound, now_ms, self._window_ms) if bound > 0 else self._window_ms
