"""Questions about transactions that are on their way, as their partition remembers them (KIP-890).

Zone: pure. Bookkeeping of one partition; who asks, and whom, is `verification`'s.

An answer of the coordinator holds for the transaction that was asked about. When that one's marker is written while the
answer is on its way, the answer means nothing any more: else a batch would open a transaction that nobody ends.
"""

from __future__ import annotations

from ottla.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class VerificationGuard:
    """One question; requests that ask the same share it."""

    __slots__ = ("adds", "epoch", "holders", "passed", "producer_id")

    def __init__(self, producer_id: int = NO_PRODUCER_ID, epoch: int = NO_PRODUCER_EPOCH) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.holders = 0
        self.adds = False
        """The producer is of transaction version 2."""
        self.passed = False
        """The coordinator has said yes; only while the batches of one request are appended."""


class VerificationGuards:
    """The questions of one partition."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[tuple[int, int], VerificationGuard] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def begin_verification(self, producer_id: int, epoch: int) -> VerificationGuard:
        """A request is about to ask; `end` follows."""
        guard = self._asked.get((producer_id, epoch))
        if guard is None:
            guard = self._asked[producer_id, epoch] = VerificationGuard(producer_id, epoch)
        guard.holders += 1
        return guard

    def end(self, guard: VerificationGuard) -> None:
        """The request is through."""
        guard.passed = False
        guard.holders -= 1
        key = guard.producer_id, guard.epoch
        if not guard.holders and self._asked.get(key) is guard:
            del self._asked[key]

    def passing(self, producer_id: int, epoch: int) -> VerificationGuard | None:
        """The question whose answer lets a batch open a transaction now; None: it may not."""
        guard = self._asked.get((producer_id, epoch))
        return guard if guard is not None and guard.passed else None

    def passes(self, producer_id: int, epoch: int) -> bool:
        """Whether a batch may open a transaction now."""
        return self.passing(producer_id, epoch) is not None

    def void(self, producer_id: int, epoch: int, bumped: bool) -> None:
        """A marker of that producer was written: what was asked before about transactions that it ends is worthless.

        `bumped`: those of lower epochs (transaction version 2). Its producer has the marker's epoch, and may be asking
        about its next transaction while the markers of the last one are on their way.
        """
        if not self._asked:
            return
        ended = epoch - 1 if bumped else epoch
        for key in [key for key in self._asked if key[0] == producer_id and key[1] <= ended]:
            del self._asked[key]

    def clear(self) -> None:
        """The role changed: another leader may have written markers."""
        self._asked.clear()
