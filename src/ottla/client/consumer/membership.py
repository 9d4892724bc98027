"""One member of a consumer group: joining, syncing, heartbeats, leaving; a machine of values.

Zone: pure. Time comes in as seconds of a monotonic clock, answers come in as messages; what is to be done goes out as
actions. Callbacks of the application are actions, too: the machine waits until it hears that they are over. The rules
are those of Java's ConsumerCoordinator and AbstractCoordinator (KIP-62, KIP-345, KIP-394, KIP-429).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final

from ottla.client.consumer.actions import (
    NOBODY,
    Action,
    Assign,
    Assigned,
    Failed,
    FindCoordinator,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    Member,
    Prepare,
    Sync,
)
from ottla.client.consumer.assignment.assignors import Assignor
from ottla.client.consumer.cooperative_revocation import CooperativeRevocation
from ottla.client.consumer.protocol import (
    NO_GENERATION,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
    readable_members,
)
from ottla.client.errors import ClientError, MalformedReplyError, RefusedError, error_code
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

PROTOCOL_TYPE: Final = "consumer"


class Phase(Enum):
    """Where the member stands."""

    IDLE = auto()
    """Not in the group, and nothing to join for."""
    PREPARING = auto()
    """It must join; the application gives up partitions first."""
    READY = auto()
    """It may send JoinGroup as soon as there is a coordinator, and it is time."""
    JOINING = auto()
    ASSIGNING = auto()
    """It leads the group, and computes the assignment."""
    SYNCING = auto()
    STABLE = auto()
    FAILED = auto()
    """It was refused, for a reason that time alone does not remove; it is in no group, and has nothing."""


_FOR_GOOD: Final = {ErrorCode.FENCED_INSTANCE_ID}
"""Refusals that the application has to act on: to join again would take the place from the successor."""
_GONE: Final = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
_FORGOTTEN: Final = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}


class Membership:
    """The machine. Every method returns nothing; `actions` hands out what is to be done since it was asked last."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.phase = Phase.IDLE
        self.member = NOBODY
        """What requests carry: generation and member id as far as they are valid."""
        self.owned: tuple[TopicPartition, ...] = ()
        """What the application has."""
        self.failure: ClientError | None = None
        """Why the group refused it, until it is assigned or the application acts; `poll` raises it each time."""
        self._topics: tuple[str, ...] = ()
        self._actions: list[Action] = []
        self._coordinator = False
        self._looking = False
        self._not_before = 0.0
        self._last_poll = 0.0
        self._last_answer = 0.0
        self._next_heartbeat = 0.0
        self._heartbeat_sent = False
        self._protocol = ""
        self._history: tuple[TopicPartition, ...] | None = None
        self._history_generation = NO_GENERATION
        self._rejoin_reason = ""
        self._again = ""
        """Why it must join once more when it has its assignment."""
        self._overslept = False
        self._members: Mapping[str, Subscription] = {}
        """While it assigns: those who get something."""
        self._back = ""
        """Its member id, when it has come back to lead a group that needs no assignment (KIP-814)."""
        self._handover = CooperativeRevocation()

    # -- the application -----------------------------------------------------------------------------------------------

    def subscribe(self, now: float, topics: Iterable[str], reason: str = "the subscription changed") -> None:
        """These topics are wanted from now on; none is allowed (a pattern that nothing matches yet)."""
        topics = tuple(sorted(topics))
        changed = topics != self._topics
        self._topics = topics
        self.reset()
        if self.phase is Phase.IDLE:
            self._last_poll = now
            self._rejoin(reason)
        elif changed:
            self.rejoin(reason)

    def reset(self) -> None:
        """The application acts on a refusal: it wants another attempt, or nothing any more."""
        self.failure = None
        if self.phase is Phase.FAILED:
            self.phase = Phase.IDLE

    def on_match(self, now: float, topics: Iterable[str]) -> None:
        """These topics match the subscription's pattern by now. A member that was refused stays refused."""
        if self.phase is Phase.FAILED:
            self._topics = tuple(sorted(topics))
        else:
            self.subscribe(now, topics, "other topics match the pattern")

    def rejoin(self, reason: str) -> None:
        """Something changed that the assignment depends on: the partitions of a topic, for instance."""
        if self.phase is Phase.STABLE:
            self._rejoin(reason)
        elif self.phase in (Phase.JOINING, Phase.ASSIGNING, Phase.SYNCING):
            self._again = reason

    def poll(self, now: float) -> None:
        """The application called `poll`: it is alive."""
        self._last_poll = now
        self._overslept = False
        if self.phase is Phase.FAILED and now >= self._not_before and not self._is_out_for_good:
            self.phase = Phase.IDLE
            self._rejoin("the group refused it before")
        self.tick(now)

    @property
    def _is_out_for_good(self) -> bool:
        return isinstance(self.failure, RefusedError) and self.failure.code in _FOR_GOOD

    @property
    def committing(self) -> Member:
        """In whose name commits are made; NOBODY while it tries again after a refusal, until it has its assignment."""
        return self.member if self.failure is None or self.phase is Phase.STABLE else NOBODY

    @property
    def is_rejoining(self) -> bool:
        """Whether it has given up what it had to, and has no new assignment yet."""
        return self.phase in (Phase.READY, Phase.JOINING, Phase.ASSIGNING, Phase.SYNCING)

    def prepared(self, now: float, owned: Iterable[TopicPartition]) -> None:
        """The application has given up what it had to, and owns this still."""
        self.owned = tuple(owned)
        if self.phase is Phase.PREPARING:
            self.phase = Phase.READY
            self.tick(now)

    def unsubscribe(self, reason: str) -> None:
        """Leave the group, and want nothing any more."""
        self._leave_group(reason)
        self.phase = Phase.IDLE
        self.failure = None
        self._topics = self.owned = ()
        self._history, self._history_generation = None, NO_GENERATION

    def _leave_group(self, reason: str) -> None:
        if self.member.member_id:
            self._leave_as(self.member.member_id, reason)
        self._reset_member()

    def _leave_as(self, member_id: str, reason: str) -> None:
        """Static members do not leave: others wait for them, for the length of their session (KIP-345)."""
        if self.settings.instance_id is None and self._coordinator:
            identity = LeaveGroupRequest.MemberIdentity(member_id=member_id, reason=reason)
            self._do(Leave(LeaveGroupRequest(group_id=self.settings.group_id, members=[identity])))

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self.phase in (Phase.IDLE, Phase.FAILED):
            return
        self._check_timeouts(now)
        if not self._coordinator:
            if not self._looking and now >= self._not_before and not self._overslept:
                self._looking = True
                self._do(FindCoordinator())
        elif self.phase is Phase.READY and now >= self._not_before:
            self._join(now)
        elif self.phase is Phase.STABLE and now >= self._handover.due:
            self._rejoin("partitions that had to be given up are still nobody's")
        elif self._beats and now >= self._next_heartbeat and not self._heartbeat_sent:
            self._beat(now)

    def wakes_at(self) -> float:
        """When `tick` is due next."""
        if self.phase in (Phase.IDLE, Phase.FAILED) or self._overslept:
            return float("inf")
        due = [self._last_poll + self.settings.max_poll_interval]
        if (not self._coordinator and not self._looking) or (self._coordinator and self.phase is Phase.READY):
            due.append(self._not_before)
        elif self._coordinator and self._beats:
            due.append(self._last_answer + self.settings.session_timeout)
            due.append(self._handover.due if self.phase is Phase.STABLE else float("inf"))
            if not self._heartbeat_sent:
                due.append(self._next_heartbeat)
        return min(due)

    @property
    def _beats(self) -> bool:
        """Whether the group counts on heartbeats: as soon as there is a generation, and no JoinGroup is waiting."""
        return self.member.generation != NO_GENERATION and self.phase not in (Phase.JOINING, Phase.READY)

    def _check_timeouts(self, now: float) -> None:
        if now - self._last_poll > self.settings.max_poll_interval and not self._overslept:
            self._oversleep()
        elif self._coordinator and self._beats and now - self._last_answer > self.settings.session_timeout:
            self._lose_coordinator(now)

    def _oversleep(self) -> None:
        """The application has not polled for too long: others shall have its partitions; it joins again by polling."""
        self._overslept = True
        if self.member.member_id:
            self._leave_group("the application did not call poll within max.poll.interval.ms")
            self.phase = Phase.IDLE
            self._rejoin("poll was called too late")

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def on_coordinator(self, now: float, error: ErrorCode = ErrorCode.NONE) -> None:
        """The coordinator is known, or cannot be known."""
        self._looking = False
        if error is ErrorCode.NONE:
            self._coordinator = True
            self._last_answer = self._next_heartbeat = now
            self._heartbeat_sent = False
            if self.phase is Phase.SYNCING:
                self._rejoin("the coordinator moved while the group was syncing")
            self.tick(now)
        elif error.retriable:
            self._not_before = now + self.settings.retry_backoff
        else:
            self._refuse(now, error)

    def on_disconnect(self, now: float) -> None:
        """The connection to the coordinator is gone; what was on its way will not be answered."""
        self._lose_coordinator(now)
        if self.phase is Phase.JOINING:
            self.phase = Phase.READY
        elif self.phase in (Phase.SYNCING, Phase.ASSIGNING):
            self._rejoin("the connection broke while the group was syncing")

    def on_join(self, now: float, answer: JoinGroupResponse) -> None:
        """JoinGroup was answered."""
        code = error_code(answer.error_code)
        if self.phase is not Phase.JOINING:
            if code is ErrorCode.NONE:  # it was given up meanwhile: the group need not wait for it
                self._leave_as(answer.member_id, "the subscription changed while it was joining")
            return
        if code is ErrorCode.NONE:
            self._on_joined(now, answer)
            return
        self.phase = Phase.READY
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member = Member(NO_GENERATION, answer.member_id)
            self.tick(now)
        else:
            self._join_failed(now, code)

    def assigned(self, now: float, assignment: Mapping[str, Iterable[TopicPartition]]) -> None:
        """The assignor has spoken."""
        if self.phase is Phase.ASSIGNING:
            members, self._members = self._members, {}
            if self.settings.cooperative:
                self._handover.assigned(members, assignment, self._back)
            rows = {member: encode_assignment(partitions) for member, partitions in assignment.items()}
            self._sync(now, {} if self._back else rows)

    def on_sync(self, now: float, answer: SyncGroupResponse) -> None:
        """SyncGroup was answered."""
        if self.phase is not Phase.SYNCING:
            return
        code = error_code(answer.error_code)
        if code is ErrorCode.NONE:
            self._last_answer = now
            self._take_assignment(now, answer.assignment)
            return
        self._join_failed(now, code)
        if self.phase is Phase.SYNCING:
            self._rejoin(f"SyncGroup was answered with {code.name}")

    def on_heartbeat(self, now: float, answer: HeartbeatResponse) -> None:
        """Heartbeat was answered."""
        if not self._heartbeat_sent:
            return
        self._heartbeat_sent = False
        code = error_code(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._last_answer = now
            if code is not ErrorCode.NONE and self.phase is Phase.STABLE:
                self._rejoin("the group is rebalancing")
        elif code in _GONE:
            self._lose_coordinator(now)
        elif code in _FORGOTTEN:
            self._reset_member()
            self._rejoin(f"the coordinator said {code.name}")
        elif not code.retriable:
            self._refuse(now, code)

    def on_commit_refused(self, now: float, member: Member, code: ErrorCode) -> None:
        """A commit of `member` was refused: the group does not know it, or has given its place to another one."""
        if member != self.member:
            return  # an answer to what it was before it joined again
        if code in _FOR_GOOD:
            self._refuse(now, code)
        elif self.phase is Phase.STABLE:
            self._reset_member()
            self._rejoin("a commit was refused")

    def actions(self) -> list[Action]:
        """What is to be done, in order."""
        actions, self._actions = self._actions, []
        return actions

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _refuse(self, now: float, code: ErrorCode) -> None:
        instance = "" if self.settings.instance_id is None else f", instance {self.settings.instance_id}"
        self._fail(now, RefusedError(code, f"group {self.settings.group_id}{instance}"))

    def _fail(self, now: float, error: ClientError) -> None:
        """It is in no group any more: what it had is lost. The next `poll` tries again, unless it is out for good."""
        self.phase = Phase.FAILED
        self.failure = error
        self._not_before = now + self.settings.retry_backoff
        self._reset_member()
        if self.owned:
            self._do(Prepare(self.owned, lost=True))
        self._do(Failed(error))

    def _reset_member(self) -> None:
        self.member = NOBODY

    def _lose_coordinator(self, now: float) -> None:
        self._coordinator = False
        self._heartbeat_sent = False
        self._not_before = now + self.settings.retry_backoff

    def _rejoin(self, reason: str) -> None:
        """Whatever the member is at: give up what has to be given up, and join."""
        self._rejoin_reason = reason
        self._again = ""
        lost = self.member.generation == NO_GENERATION and bool(self.owned)
        if self.phase is Phase.PREPARING and not lost:
            return
        self.phase = Phase.PREPARING
        if lost or not self.settings.cooperative:
            self._do(Prepare(self.owned, lost))
        else:
            wanted = set(self._topics)
            self._do(Prepare(tuple(tp for tp in self.owned if tp.topic not in wanted), lost))

    def _join(self, now: float) -> None:
        self.phase = Phase.JOINING
        self._heartbeat_sent = False
        self._last_answer = now
        settings = self.settings
        self._do(
            Join(
                JoinGroupRequest(
                    group_id=settings.group_id,
                    session_timeout_ms=int(settings.session_timeout * 1000),
                    rebalance_timeout_ms=int(settings.max_poll_interval * 1000),
                    member_id=self.member.member_id,
                    group_instance_id=settings.instance_id,
                    protocol_type=PROTOCOL_TYPE,
                    protocols=[self._offer(each) for each in settings.assignors],
                    reason=self._rejoin_reason[:255],
                )
            )
        )

    def _offer(self, assignor: Assignor) -> JoinGroupRequest.JoinGroupRequestProtocol:
        data = assignor.user_data(self._history, self._history_generation)
        wanted = Subscription(self._topics, data, self.owned, self._history_generation, self.settings.rack)
        return JoinGroupRequest.JoinGroupRequestProtocol(name=assignor.name, metadata=encode_subscription(wanted))

    def _join_failed(self, now: float, code: ErrorCode) -> None:
        """For JoinGroup and SyncGroup."""
        if code in _FORGOTTEN:
            self._reset_member()
            self.phase = Phase.READY
            self._rejoin(f"the coordinator said {code.name}")
        elif code in _GONE:
            self._lose_coordinator(now)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS or code.retriable:
            self._not_before = now + self.settings.retry_backoff
        else:
            self._refuse(now, code)

    def _on_joined(self, now: float, answer: JoinGroupResponse) -> None:
        self.member = Member(answer.generation_id, answer.member_id)
        self._protocol = answer.protocol_name or ""
        self._last_answer = now
        self._next_heartbeat = now + self.settings.heartbeat_interval
        self._handover.clear()
        if answer.leader != answer.member_id:
            self._sync(now, {})
            return
        assignor = next((each for each in self.settings.assignors if each.name == self._protocol), None)
        if assignor is None:
            what = f"the coordinator chose the assignor {self._protocol!r}, which was not offered"
            self._leave_group("the assignor that the group uses is not known here")
            self._fail(now, MalformedReplyError(what))
            return
        rows = answer.members
        self._members = readable_members((row.member_id, row.metadata, row.group_instance_id) for row in rows)
        self._back = answer.member_id if answer.skip_assignment else ""
        self.phase = Phase.ASSIGNING
        self._do(Assign(assignor, self._members))

    def _sync(self, now: float, rows: Mapping[str, bytes]) -> None:
        self.phase = Phase.SYNCING
        self._next_heartbeat = now + self.settings.heartbeat_interval
        self._do(
            Sync(
                SyncGroupRequest(
                    group_id=self.settings.group_id,
                    generation_id=self.member.generation,
                    member_id=self.member.member_id,
                    group_instance_id=self.settings.instance_id,
                    protocol_type=PROTOCOL_TYPE,
                    protocol_name=self._protocol,
                    assignments=[
                        SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
                        for member, data in rows.items()
                    ],
                )
            )
        )

    def _take_assignment(self, now: float, assignment: bytes | memoryview) -> None:
        """The assignment is here; under the cooperative protocol what is given up means one more rebalance.

        One that cannot be decoded is none: the member stays in the group with nothing, and `poll` says why.
        """
        self.failure = None
        try:
            partitions = decode_assignment(assignment)
        except MalformedReplyError as error:
            partitions = ()
            self.failure = error
            self._do(Failed(error))
        self._handover.on_partitions_taken(partitions, now + self.settings.max_poll_interval)
        before = set(self.owned)
        revoked = tuple(tp for tp in self.owned if tp not in set(partitions))
        added = tuple(tp for tp in partitions if tp not in before)
        self.phase = Phase.STABLE
        self.owned = partitions
        self._history, self._history_generation = partitions, self.member.generation
        self._do(Assigned(added, revoked))
        if revoked or self._again:
            self._rejoin(self._again or "partitions were given up for others")

    def _beat(self, now: float) -> None:
        self._heartbeat_sent = True
        self._next_heartbeat = now + self.settings.heartbeat_interval
        self._do(
            Heartbeat(
                HeartbeatRequest(
                    group_id=self.settings.group_id,
                    generation_id=self.member.generation,
                    member_id=self.member.member_id,
                    group_instance_id=self.settings.instance_id,
                )
            )
        )
