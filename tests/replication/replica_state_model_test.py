"""The ISR and its arithmetic against a model that keeps the whole history and computes everything from it.

The model knows no sessions and no short cuts: every fetch of a follower is a fetch of the partition, caught up is what
the definition says, the high watermark is a minimum over all replicas that are or may be in sync.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import ErrorCode
from ottla.replication.partition.isr import InSyncReplicas
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition.replica_state import IsrOutcome, IsrProposal, PartitionState, next_high_watermark

LEADER = 1
REPLICAS = (1, 2, 3)
LAG_MS = 10
MS = 1_000_000


class Session:
    def __init__(self) -> None:
        self.used_ns = self.previous_ns = -1
        self.is_requested = True

    def on_replaced(self) -> None:
        pass


class Model:
    """A leader that keeps the whole history."""

    def __init__(self, isr: tuple[int, ...], min_isr: int, end: int, now: int) -> None:
        self.isr = isr
        self.min_isr = min_isr
        self.end = self.epoch_start = end
        self.mark = 0
        self.born = now
        self.proposed: tuple[int, ...] | None = None
        self.fetches: dict[int, list[tuple[int, int, int]]] = {2: [], 3: []}
        """Per follower (time, offset, the leader's end then)."""
        self.since: dict[int, int | None] = {each: now if each in isr else None for each in (2, 3)}

    def held(self, follower: int) -> int:
        return self.fetches[follower][-1][1] if self.fetches[follower] else -1

    def advance(self) -> None:
        counted = set(self.isr) | set(self.proposed or ())
        if len(self.isr) >= self.min_isr:
            self.mark = max(self.mark, min([self.end, *(self.held(each) for each in counted - {LEADER})]))

    def caught_up_at(self, follower: int) -> int | None:
        """The latest moment of which it is known that the follower had all that the leader had."""
        history = self.fetches[follower]
        moments = [] if self.since[follower] is None else [self.since[follower]]
        for at, (moment, offset, end) in enumerate(history):
            if offset >= end or (at + 1 < len(history) and history[at + 1][1] >= end):
                moments.append(moment)
        return max(moments, default=None)

    def keeps_up(self, follower: int, now: int) -> bool:
        last = self.caught_up_at(follower)
        return self.held(follower) == self.end or (last is not None and now - last <= LAG_MS * MS)

    def may_join(self, follower: int) -> bool:
        return follower not in self.isr and self.held(follower) >= max(self.mark, self.epoch_start)


class Pair:
    """The real object and the model, with the same inputs."""

    def __init__(self, isr: tuple[int, ...], min_isr: int, end: int) -> None:
        self.now = 50 * MS
        self.min_isr = min_isr
        self.mark = 0
        self.end = end
        self.epoch = 1
        self.real = InSyncReplicas(LEADER, PartitionContext(lag_ms=LAG_MS))
        self.sessions = {2: Session(), 3: Session()}
        self.real.apply_state(PartitionState(LEADER, 7, isr, self.epoch, REPLICAS), end, self.now)
        self.model = Model(isr, min_isr, end, self.now)
        self.settle()

    def settle(self) -> None:
        """Both move the high watermark; everything visible is the same."""
        real, model = self.real, self.model
        self.mark = next_high_watermark(self.mark, (real.lowest_end(self.end),), len(real.isr), self.min_isr)
        model.advance()
        assert self.mark == model.mark
        assert real.isr == model.isr
        assert (real.proposed.isr if real.proposed else None) == model.proposed
        for each in (2, 3):
            assert real.keeps_up(each, self.end, self.now) == model.keeps_up(each, self.now)

    def propose(self, proposal: IsrProposal | None, expected: tuple[int, ...] | None) -> None:
        assert (proposal.isr if proposal else None) == expected
        if expected is not None:
            self.model.proposed = expected

    # -- what may happen ---------------------------------------------------------------------------------------------

    def append(self, count: int) -> None:
        self.end += count
        self.model.end = self.end

    def fetch(self, follower: int, copied: int) -> None:
        """It asks from where it was, or from further on; a session that has nothing new to say does not name it."""
        model, session = self.model, self.sessions[follower]
        offset = min(self.end, max(0, model.held(follower)) + copied)
        session.previous_ns, session.used_ns = session.used_ns, self.now
        history = model.fetches[follower]
        silent = bool(history) and history[-1][1] == offset == history[-1][2] == self.end
        history.append((self.now, offset, self.end))
        if silent:
            return
        self.real.on_follower_fetch(follower, 5, offset, 0, self.end, self.now, session)
        self.settle()
        joins = model.proposed is None and model.may_join(follower)
        if follower not in self.real.isr:
            found = self.real.propose_joiner(follower, self.mark, self.now)
            self.propose(found, (*model.isr, follower) if joins else None)

    def follow(self, follower: int) -> None:
        """It has copied what there was when it asked last, and not what came since."""
        history = self.model.fetches[follower]
        self.fetch(follower, history[-1][2] - history[-1][1] if history else 0)

    def shrink(self) -> None:
        model = self.model
        kept = tuple(each for each in model.isr if each == LEADER or model.keeps_up(each, self.now))
        wanted = kept if kept != model.isr and model.proposed is None else None
        self.propose(self.real.propose_shrink(self.end, self.now), wanted)

    def confirm(self) -> None:
        if self.real.proposed is None:
            return
        self.epoch += 1
        proposal = self.real.proposed
        self.real.on_alter_partition_response(IsrOutcome(proposal, ErrorCode.NONE, proposal.isr, 7, self.epoch))
        self.model.isr, self.model.proposed = proposal.isr, None
        self.settle()
        follower = self.real.next_joiner(self.mark)
        if follower is not None:
            assert self.model.may_join(follower.isr[-1])
            self.model.proposed = follower.isr

    def wait_for_state(self) -> None:
        if self.real.proposed is not None:
            self.real.on_alter_partition_response(IsrOutcome(self.real.proposed, ErrorCode.INVALID_UPDATE_VERSION))
            self.settle()
            self.restate(self.model.isr)

    def restate(self, isr: tuple[int, ...]) -> None:
        """The controller sends another state within the epoch."""
        self.epoch += 1
        self.real.apply_state(PartitionState(LEADER, 7, isr, self.epoch, REPLICAS), None, self.now)
        self.model.isr, self.model.proposed = isr, None
        self.settle()


ISRS = st.sampled_from([(1,), (1, 2), (1, 3), (1, 2, 3), (1, 3, 2)])
FOLLOWERS = st.sampled_from([2, 3])
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("fetch"), FOLLOWERS, st.integers(0, 4)),
    st.tuples(st.just("fetch"), FOLLOWERS, st.just(9)),
    st.tuples(st.just("follow"), FOLLOWERS),
    st.tuples(st.just("pass"), st.integers(1, 12)),
    st.tuples(st.just("shrink")),
    st.tuples(st.just("confirm")),
    st.tuples(st.just("wait_for_state")),
    st.tuples(st.just("restate"), ISRS),
)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(isr=ISRS, min_isr=st.integers(1, 3), end=st.integers(0, 3), steps=st.lists(STEPS, max_size=60))
def test_in_sync_replicas_agree_with_the_whole_history(
    isr: tuple[int, ...], min_isr: int, end: int, steps: list[tuple]
) -> None:
    pair = Pair(isr, min_isr, end)
    for name, *arguments in steps:
        if name == "pass":
            pair.now += arguments[0] * MS
        else:
            getattr(pair, name)(*arguments)
        pair.settle()
