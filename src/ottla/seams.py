"""The seams between the deterministic broker and a shell, real (`ottla.server`) or simulated (`ottla.sim`).

Zone: pure. Contains the protocols and the values that cross them, and no implementation.

The laws, checked by one contract suite (tests/contract) against every implementation:

1. Nothing calls back inside a call. A completion is its own *turn*: one input, run to its end, then the
   broker drains its one FIFO of effects. `done` is never called before the call that took it has returned.
2. `done` is called exactly once; nothing is cancelled. The callback checks again what it relies on (leader
   epoch, topic id, generation), because that may have changed.
3. `now()` is constant within a turn. Monotonic time for deadlines, wall time for what is persisted. One alarm.
4. Order: FIFO per File (appends, syncs), per node and lane (calls), per store (completions *and* watches).
5. Arguments are borrowed until the call returns; parts of a reply until they are sent. A view that is passed to
   `done` becomes invalid when `done` returns; so does the frame of `on_frame`, unless it was held.
6. Synchronous methods raise Failure; asynchronous ones pass it to `done`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from ottla.errors import OperatingError

T = TypeVar("T")


class Kind(Enum):
    """What a failure means for the operation."""

    NOT_DONE = 1
    """The operation certainly did not happen."""
    UNKNOWN = 2
    """It may have happened: read the state again before deciding."""
    CONFLICT = 3
    """A condition (version, existence) did not hold."""
    EXPIRED = 4
    """The session that the call belonged to is over."""
    FULL = 5
    """No space (ENOSPC, EDQUOT); reading and deleting still work."""
    IO = 6
    """The device failed (EIO, EROFS, vanished); the log directory goes offline. Never retried."""
    TIMEOUT = 7
    """No response within the deadline: like UNKNOWN for a request that was sent."""


class Failure(OperatingError):
    """An operating error of an implementation of a seam, with the kind that decides what to do."""

    def __init__(self, kind: Kind, message: str = "") -> None:
        super().__init__(f"{kind.name}: {message}" if message else kind.name)
        self.kind = kind
        self.message = message


Done = Callable[["T | Failure"], None]
"""A completion. Called exactly once, in a turn of its own."""


class Instant(NamedTuple):
    """The time of a turn."""

    mono_ns: int
    """For deadlines: monotonic, and meaningless outside this process."""
    wall_ms: int
    """For timestamps of records and everything persisted: may jump."""


class Clock(Protocol):
    """Time."""

    def now(self) -> Instant:
        """The time of this turn; the same value until the turn ends."""
        ...

    def set_alarm(self, mono_ns: int | None) -> None:
        """Request one `on_alarm` at or after this time; replaces the earlier request, None cancels it."""
        ...


class Entropy(Protocol):
    """Randomness: one seeded stream per purpose, so that a new use does not shift the others."""

    def random_below(self, stream: str, n: int) -> int:
        """A uniform integer in [0, n)."""
        ...

    def random_bytes(self, stream: str, n: int) -> bytes:
        """`n` random bytes."""
        ...


class File(Protocol):
    """A counted handle: it survives rename, unlink and the closing of idle descriptors."""

    @property
    def size(self) -> int:
        """Bytes accepted so far: the position that the last `append` returned plus its size."""
        ...

    @property
    def durable(self) -> int:
        """Bytes covered by a completed sync."""
        ...

    @property
    def generation(self) -> int:
        """Grows by one per truncate, so that an older Region is not served afterwards."""
        ...

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all parts at the end, or nothing. Returns the position of the first byte.

        Raises Failure FULL or IO; a short write is undone before it raises.
        """
        ...

    def try_read(self, pos: int, into: memoryview) -> int:
        """Read what is resident, without blocking: 0 means "would block" or end of file."""
        ...

    def read(self, pos: int, size: int, done: Done[memoryview]) -> None:
        """Read up to `size` bytes off the loop; fewer only at the end of the file."""
        ...

    def read_now(self, pos: int, into: memoryview) -> int:
        """Read, blocking. For recovery at start and for jobs in workers only. Returns bytes read (< len at EOF)."""
        ...

    def view(self) -> memoryview:
        """The whole file, read-only, mapped where the shell can. Only for sealed files, which never change."""
        ...

    def truncate(self, size: int) -> None:
        """Cut to `size` (≤ the present size); `generation` grows."""
        ...

    def sync(self, done: Done[int]) -> None:
        """Make everything accepted durable; the value is the size at submit. Calls coalesce. Failure is final."""
        ...

    def seal(self) -> None:
        """No more appends. Idempotent."""
        ...

    def rest(self) -> None:
        """Hint that the file will not be used for some time: its descriptor may be closed until then."""
        ...

    def close(self) -> None:
        """Release the handle. Outstanding syncs and regions still complete."""
        ...


class Region(NamedTuple):
    """Bytes of a file as a part of a reply; resolved when they are *sent* (sendfile).

    If the file has another generation by then, or ends early, the connection is closed: never other bytes.
    """

    file: File
    pos: int
    size: int
    generation: int


Part = bytes | bytearray | memoryview | Region
"""A part of a reply."""


class Disk(Protocol):
    """One per log directory. Paths are relative to it, with `/`. An IO failure means this directory is offline."""

    @property
    def name(self) -> str:
        """The directory as the configuration names it."""
        ...

    def open(self, path: str, create: bool) -> File:
        """Open a file for reading and appending. Raises Failure NOT_DONE when it is missing and not created."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name is there."""
        ...

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted; directories end in `/`. Raises Failure NOT_DONE when it is missing."""
        ...

    def make_dir(self, path: str) -> bool:
        """Create a directory (parents exist) if it is missing. Returns whether it is new, and therefore empty."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; durable after `sync_dir` of the parent(s). Works for files and directories."""
        ...

    def sync_dir(self, path: str, done: Done[None]) -> None:
        """Make creations, renames and unlinks in this directory durable."""
        ...

    def replace_file(self, path: str, data: bytes, done: Done[None]) -> None:
        """Checkpoint: write `<path>.tmp`, sync it, rename over `path`, sync the directory. Atomic. FIFO per path."""
        ...

    def replace_now(self, path: str, data: bytes) -> None:
        """Replace a file, blocking, after pending replacements of it: at start and stop, seldom between."""
        ...

    def sync_now(self, path: str) -> None:
        """Sync one file or directory, blocking: at start and stop only."""
        ...

    def sync_all(self, done: Done[bool]) -> None:
        """Make the whole directory durable, names and bytes, with one system call: at a stop.

        False: the system has no such call, and nothing is known to be durable.
        """
        ...

    def sync_all_now(self) -> bool:
        """Make the whole directory durable, also earlier processes' writes, blocking: at start only. Raises Failure."""
        ...

    def read_small(self, path: str) -> bytes:
        """Read a whole small file without an open handle, blocking. Raises Failure, NOT_DONE when it is missing."""
        ...

    def unlink(self, path: str, done: Done[None]) -> None:
        """Remove a file, or a directory with its contents, off the loop."""
        ...

    def unlink_now(self, path: str) -> None:
        """Remove a small file if it exists, blocking: at start and stop, and for markers."""
        ...

    def modified_ms(self, path: str) -> int:
        """Wall time of the last change in ms (retention of segments without timestamps)."""
        ...

    def warm_regions(self, regions: Sequence[Region], done: Done[None]) -> None:
        """Bring cold bytes into memory off the loop, so that sending them does not stall it."""
        ...

    def free_bytes(self) -> int:
        """Free space of the file system, in bytes."""
        ...

    def total_bytes(self) -> int:
        """Size of the file system, in bytes."""
        ...


class Workers(Protocol):
    """Pure, picklable work (clean, rebuild index, deep-validate, recompress), off the loop."""

    def run_job(self, job: str, arguments: tuple[object, ...], done: Done[object], owner: object = None) -> None:
        """Run the function named `package.module:function`; `done` receives its result or a Failure.

        `owner`: the connection or partition that the job is for. Jobs of one owner run one after the other, in their
        order; owners take turns, and none waits for the broker's own work (None). A job that exceeds the limits of time
        or memory is a Failure, and so is one whose process died.
        """
        ...


class Peer(Protocol):
    """The other end of a connection."""

    principal: str
    """The principal that has authenticated on this connection; set after authentication."""

    @property
    def listener(self) -> str: ...
    @property
    def host(self) -> str: ...


class Slot(Protocol):
    """The place of one response in the order of its connection."""

    @property
    def peer(self) -> Peer: ...


class Gate(Enum):
    """What the shell may do with the next request of this peer."""

    NEXT = 1
    """Continue: a later response may be computed before an earlier one is sent (responses still leave in order)."""
    WAIT = 2
    """Start no request of this peer before `open_gate` or `send_reply` of this slot."""


class Network(Protocol):
    """Connections, seen from the broker."""

    def send_reply(self, slot: Slot, parts: Sequence[Part]) -> None:
        """Send a response of these parts, header first; the shell adds the length prefix.

        Responses leave in the order of requests. Opens the gate if this slot closed it. No parts: nothing is sent
        (acks=0).
        """
        ...

    def open_gate(self, slot: Slot) -> None:
        """Open the gate that this slot closed, before its reply."""
        ...

    def hold_frame(self, slot: Slot, frame: memoryview) -> memoryview:
        """Keep the frame beyond `on_frame`: writable, charged to the memory budget until the response."""
        ...

    def pause_reading(self, peer: Peer, until_ns: int) -> None:
        """Read nothing from this peer before that time (quota)."""
        ...

    def set_frame_bounds(self, peer: Peer, least: int, most: int | None) -> None:
        """Set the sizes of the frames that this peer may send from now on; None: the limit of the configuration.

        Checked before memory is taken for a frame. A new connection of a listener with SASL begins with the bounds that
        `BrokerConfig.first_frame_limits` states.
        """
        ...

    def measure_turns(self, report: Callable[[Peer, int], None] | None) -> None:
        """Report how long each turn of `on_frame` takes, after it, in nanoseconds (quota); None: measure nothing."""
        ...

    def close_connection(self, peer: Peer, why: str) -> None:
        """Close the connection, with one log line that states why."""
        ...

    def call_broker(self, node: int, frame: bytes, deadline_ns: int, done: Done[memoryview], lane: str = "") -> None:
        """Send a request (without its length prefix) to another broker, or to this one.

        FIFO per node and lane; a lane is a connection of its own, so that a long poll delays no other requests.
        """
        ...

    def set_address(self, node: int, host: str, port: int) -> None:
        """Set the address of a broker for `call_broker`; connections to another address are closed."""
        ...


class Op(NamedTuple):
    """One operation of an atomic multi on the metadata store. version -1 matches any."""

    verb: Literal["check", "put", "create", "ephemeral", "sequential", "ephemeral_sequential", "delete"]
    path: str
    data: bytes = b""
    version: int = -1


class Node(NamedTuple):
    """A node of the metadata store. `owner` is the session id of an ephemeral node, else 0."""

    data: bytes
    version: int
    czxid: int
    """Number of the transaction that created it; transactions are numbered in their order."""
    owner: int
    mzxid: int = 0
    """Number of the transaction that changed its data last."""


class MetadataStore(Protocol):
    """ZooKeeper's contract, for every implementation of the metadata store."""

    def submit_ops(self, lane: str, ops: Sequence[Op], done: Done[Sequence[tuple[str, int]]]) -> None:
        """Apply all ops or none; the value is (path, version) per op.

        One in flight per lane; a failure fails all that were submitted on that lane before its delivery
        (NOT_DONE).
        """
        ...

    def get_node(self, path: str, watch: bool, done: Done[Node | None]) -> None:
        """Read a node; None when it is absent. `watch` requests one `on_node` at its next change."""
        ...

    def get_children(self, path: str, watch: bool, done: Done[Sequence[str]]) -> None:
        """Read the names of the children, sorted; empty for an absent node."""
        ...


class Session(Enum):
    """State of the broker's session with the metadata store."""

    OPEN = 1
    SUSPENDED = 2
    EXPIRED = 3


class Inputs(Protocol):
    """The methods of the broker that a shell may call, besides `done`. Each call is one turn."""

    def on_frame(self, slot: Slot, frame: memoryview) -> Gate:
        """Handle a whole request, without its length prefix; the frame is writable, and borrowed until the return."""
        ...

    def on_gone(self, peer: Peer) -> None:
        """The connection has ended; the shell drops replies to its slots."""
        ...

    def on_alarm(self) -> None:
        """The time of the alarm is reached."""
        ...

    def on_session(self, state: Session, session_id: int) -> None:
        """The store's session changed. At each OPEN all watches are gone: read the nodes again."""
        ...

    def on_standstill(self) -> None:
        """The process was paused longer than its session. Called before all inputs that have waited meanwhile, and
        before the EXPIRED that follows."""
        ...

    def on_node(self, path: str) -> None:
        """A watched node changed (one-shot)."""
        ...

    def end_turn(self) -> None:
        """Drain the effects. The shell calls it once after each completion (`done`)."""
        ...

    def run_background(self, budget_ns: int) -> bool:
        """Do idle work (loading, retention, flushing). Returns whether more of it waits."""
        ...


class TokenSignatures(Protocol):
    """Checks the signatures of bearer tokens, with keys that the shell keeps up to date."""

    def claims_of(self, token: str) -> Mapping[str, Any]:
        """The claims of a token whose signature is right. Raises `ottla.security.sasl.oauthbearer.TokenRefused`."""
        ...


class World(NamedTuple):
    """All seams of a broker."""

    clock: Clock
    entropy: Entropy
    disks: Sequence[Disk]
    """One per entry of `log.dirs`, in that order."""
    network: Network
    workers: Workers
    store: MetadataStore | None = None
    """The metadata store outside; None: the broker uses the embedded one on its first disk."""
    broker_secret: bytes | None = None
    """The secret that brokers prove to know before a connection counts as a broker's; None: its listener decides."""
    sasl_users: Mapping[str, str] = MappingProxyType({})
    """The lines of `ottla.sasl.users.file`: user → password or credentials."""
    token_signatures: Mapping[str, TokenSignatures] = MappingProxyType({})
    """For listeners that accept signed bearer tokens, by name."""
