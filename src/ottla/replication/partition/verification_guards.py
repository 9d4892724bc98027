"""The verifications in progress of one partition (Kafka's VerificationGuard, KIP-890).

Zone: pure. Bookkeeping of one partition; `verification` asks the coordinators.

An answer of the coordinator is valid for one transaction. If that transaction's marker is written before the answer
arrives, the answer is void: otherwise a batch would open a transaction that no coordinator ends.
"""

from __future__ import annotations

from ottla.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class VerificationGuard:
    """One verification in progress; requests that need the same one share it."""

    __slots__ = ("adds", "epoch", "holders", "passed", "producer_id", "role_changed")

    def __init__(self, producer_id: int = NO_PRODUCER_ID, epoch: int = NO_PRODUCER_EPOCH) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.holders = 0
        self.adds = False
        """Whether the producer uses transaction version 2."""
        self.passed = False
        """Whether the coordinator has confirmed; set only while the batches of one request are appended."""
        self.role_changed = False
        """Whether it is void because the partition changed its role or leader epoch: the producer has to try again."""


class VerificationGuards:
    """The verifications of one partition."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[tuple[int, int], VerificationGuard] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def begin_verification(self, producer_id: int, epoch: int) -> VerificationGuard:
        """The guard for a request that is about to ask; the request calls `end_verification` later."""
        guard = self._asked.get((producer_id, epoch))
        if guard is None:
            guard = self._asked[producer_id, epoch] = VerificationGuard(producer_id, epoch)
        guard.holders += 1
        return guard

    def end_verification(self, guard: VerificationGuard) -> None:
        """End a request's use of a guard; the last one removes it."""
        guard.passed = False
        guard.holders -= 1
        key = guard.producer_id, guard.epoch
        # A marker may have voided this guard since, and the key may belong to the verification of a later request.
        if not guard.holders and self._asked.get(key) is guard:
            del self._asked[key]

    def passing_guard(self, producer_id: int, epoch: int) -> VerificationGuard | None:
        """The guard that allows a batch to open a transaction now; None: the batch may not."""
        guard = self._asked.get((producer_id, epoch))
        return guard if guard is not None and guard.passed else None

    def may_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a batch may open a transaction now."""
        return self.passing_guard(producer_id, epoch) is not None

    def void_ended(self, producer_id: int, epoch: int, bumped: bool) -> None:
        """Void the verifications of transactions that a marker ends, after it was written.

        `bumped`: transaction version 2. The marker's epoch is then the one that the producer has next, and guards of
        that epoch may be of its next transaction, so only those of lower epochs are void.
        """
        if not self._asked:
            return
        ended = epoch - 1 if bumped else epoch
        for key in [key for key in self._asked if key[0] == producer_id and key[1] <= ended]:
            del self._asked[key]

    def void_all(self) -> None:
        """Void all verifications after a change of role or leader epoch: another leader may have written markers."""
        for guard in self._asked.values():
            guard.role_changed = True
        self._asked.clear()
