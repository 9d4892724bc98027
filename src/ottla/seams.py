"""The seams between the deterministic broker and a shell, real (`ottla.server`) or simulated (`ottla.sim`).

Zone: pure. Protocols and the values that cross them live here; nothing that implements one.

The laws, checked by one contract suite (tests/contract) against every implementation:

1. Nothing calls back inside a call. A completion is its own *turn*: one input, run to its end, then the
   broker drains its one FIFO of effects. `done` is never called before the call that took it has returned.
2. `done` fires exactly once; nothing is cancelled. Whoever receives it re-checks what it stood on (leader
   epoch, topic id, generation): the world may have changed.
3. `now()` is constant within a turn. Monotonic time for deadlines, wall time for what is persisted. One alarm.
4. Order: FIFO per File (appends, syncs), per node and lane (calls), per store (completions *and* watches).
5. Arguments are borrowed until the call returns; parts of a reply until they are sent. A view handed to `done`
   dies when `done` returns; so does the frame of `on_frame`, unless it was held.
6. Synchronous methods raise Failure; asynchronous ones hand it to `done`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Literal, NamedTuple, Protocol, TypeVar

from ottla.errors import OperatingError

T = TypeVar("T")


class Kind(Enum):
    """What a failure says about the world."""

    NOT_DONE = 1
    """Certainly did not happen."""
    UNKNOWN = 2
    """It may have happened: re-read before deciding."""
    CONFLICT = 3
    """A condition (version, existence) did not hold."""
    EXPIRED = 4
    """The session that the call belonged to is over."""
    FULL = 5
    """No space (ENOSPC, EDQUOT); reading and deleting still work."""
    IO = 6
    """The device failed (EIO, EROFS, vanished); the log directory goes offline. Never retried."""
    TIMEOUT = 7
    """No answer within the deadline: like UNKNOWN for what was sent."""


class Failure(OperatingError):
    """An operating error from below a seam, with the kind that decides what to do."""

    def __init__(self, kind: Kind, message: str = "") -> None:
        super().__init__(f"{kind.name}: {message}" if message else kind.name)
        self.kind = kind
        self.message = message


Done = Callable[["T | Failure"], None]
"""A completion. Called exactly once, in a turn of its own."""


class Instant(NamedTuple):
    """The time of a turn."""

    mono_ns: int
    """For deadlines: never goes back, means nothing outside this process."""
    wall_ms: int
    """For record stamps and everything persisted: may jump."""


class Clock(Protocol):
    """Time."""

    def now(self) -> Instant:
        """The time of this turn; the same value until the turn ends."""
        ...

    def alarm(self, mono_ns: int | None) -> None:
        """Ask for one `on_alarm` at or after this time; replaces the earlier request, None takes it back."""
        ...


class Entropy(Protocol):
    """Randomness: one seeded stream per purpose, so that a new use does not shift the others."""

    def below(self, stream: str, n: int) -> int:
        """A uniform integer in [0, n)."""
        ...

    def octets(self, stream: str, n: int) -> bytes:
        """`n` random bytes."""
        ...


class File(Protocol):
    """A counted handle: it survives rename, unlink and the closing of idle descriptors."""

    @property
    def size(self) -> int:
        """Bytes accepted so far: what `append` returned last plus what it took."""
        ...

    @property
    def durable(self) -> int:
        """Bytes covered by a completed sync."""
        ...

    @property
    def generation(self) -> int:
        """Grows by one per truncate, so that a Region of before is not served after."""
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
        """Nothing is to be done with the file for some time: what keeps it at hand may be given back till then."""
        ...

    def close(self) -> None:
        """Give the handle back. Outstanding syncs and regions still complete."""
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
        """Create a directory (parents exist); fine if it is there. Whether it was not, so that nothing is in it."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; durable after `sync_dir` of the parent(s). Works for files and directories."""
        ...

    def sync_dir(self, path: str, done: Done[None]) -> None:
        """Make creations, renames and unlinks in this directory durable."""
        ...

    def replace(self, path: str, data: bytes, done: Done[None]) -> None:
        """Checkpoint: write `<path>.tmp`, sync it, rename over `path`, sync the directory. Atomic. FIFO per path."""
        ...

    def replace_now(self, path: str, data: bytes) -> None:
        """The same, blocking, behind those of this path that are on their way: at start and stop, seldom between."""
        ...

    def sync_now(self, path: str) -> None:
        """Sync one file or directory, blocking: at start and stop only."""
        ...

    def sync_all(self, done: Done[bool]) -> None:
        """Make durable all that is in the directory, names and bytes, with one call of the system: at a stop.

        False: the system has no such call, and nothing is known to be durable.
        """
        ...

    def sync_all_now(self) -> bool:
        """The same, blocking, written by earlier processes too: at start only. Raises Failure."""
        ...

    def read_small(self, path: str) -> bytes:
        """A whole small file that no handle is open on, blocking. Raises Failure, NOT_DONE when it is missing."""
        ...

    def unlink(self, path: str, done: Done[None]) -> None:
        """Remove a file, or a directory with all that is in it, off the loop."""
        ...

    def unlink_now(self, path: str) -> None:
        """Remove a small file, blocking: at start and stop, and for markers. Missing is fine."""
        ...

    def modified_ms(self, path: str) -> int:
        """Wall time of the last change in ms (retention of segments without timestamps)."""
        ...

    def warm(self, regions: Sequence[Region], done: Done[None]) -> None:
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

    def run(self, job: str, arguments: tuple[object, ...], done: Done[object], owner: object = None) -> None:
        """Run the function named `package.module:function`; its result or a Failure comes back.

        `owner`: for whom, a connection or a partition that is read. Jobs of one owner run one after the other, in their
        order; owners take turns, and none waits for the broker's own work (None). A job that needs more time or memory
        than a job may have is a Failure, and so is one over which its process died.
        """
        ...


class Peer(Protocol):
    """The other end of a connection."""

    principal: str
    """Who has authenticated on this connection; set when that is done."""

    @property
    def listener(self) -> str: ...
    @property
    def host(self) -> str: ...


class Slot(Protocol):
    """One ordered answer on a connection."""

    @property
    def peer(self) -> Peer: ...


class Gate(Enum):
    """What the shell may do with the next request of this peer."""

    NEXT = 1
    """Go on: a later answer may be computed before an earlier one is sent (it still leaves in order)."""
    WAIT = 2
    """Start nothing more from this peer before `release` or `reply` of this slot."""


class Network(Protocol):
    """Connections, seen from the broker."""

    def reply(self, slot: Slot, parts: Sequence[Part]) -> None:
        """Answer with these parts, header first; the shell adds the length prefix, as it took it off the request.

        Leaves in request order; opens the gate if this slot closed it. No parts: nothing is sent (acks=0).
        """
        ...

    def release(self, slot: Slot) -> None:
        """Open the gate that this slot closed, before its reply."""
        ...

    def hold(self, slot: Slot, frame: memoryview) -> memoryview:
        """Own the frame beyond `on_frame`: writable, charged to the memory budget until the answer."""
        ...

    def mute(self, peer: Peer, until_ns: int) -> None:
        """Read nothing from this peer before that time (quota)."""
        ...

    def close(self, peer: Peer, why: str) -> None:
        """Drop the connection, with one log line."""
        ...

    def call(self, node: int, frame: bytes, deadline_ns: int, done: Done[memoryview], lane: str = "") -> None:
        """Send a request (without its length prefix) to another broker, or to this one.

        FIFO per node and lane; a lane is a connection of its own, so that a long poll holds up nothing else.
        """
        ...

    def locate(self, node: int, host: str, port: int) -> None:
        """Where `call` finds that broker from now on; a line to another address is given up."""
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
    """Transaction that created it; transactions are numbered in one order."""
    owner: int
    mzxid: int = 0
    """Transaction that changed its data last."""


class MetadataStore(Protocol):
    """ZooKeeper's contract, whichever engine serves it."""

    def submit(self, lane: str, ops: Sequence[Op], done: Done[Sequence[tuple[str, int]]]) -> None:
        """Apply all ops or none; the value is (path, version) per op.

        One in flight per lane; a failure fails all that were submitted on that lane before its delivery
        (NOT_DONE).
        """
        ...

    def get(self, path: str, watch: bool, done: Done[Node | None]) -> None:
        """The node, or None when it is absent; `watch` asks for one `on_node` at its next change."""
        ...

    def children(self, path: str, watch: bool, done: Done[Sequence[str]]) -> None:
        """Names of the children, sorted; of an absent node: none."""
        ...


class Session(Enum):
    """State of the broker's session with the metadata store."""

    OPEN = 1
    SUSPENDED = 2
    EXPIRED = 3


class Inputs(Protocol):
    """All that a shell may call on the broker, besides `done`. Each call is one turn."""

    def on_frame(self, slot: Slot, frame: memoryview) -> Gate:
        """A whole request, without its length prefix; writable, borrowed until return."""
        ...

    def on_gone(self, peer: Peer) -> None:
        """The connection is over; replies to its slots are dropped by the shell."""
        ...

    def on_alarm(self) -> None:
        """The alarm's time has come."""
        ...

    def on_session(self, state: Session, session_id: int) -> None:
        """The store's session changed. Each OPEN: all watches are gone, re-read."""
        ...

    def on_standstill(self) -> None:
        """The process stood still for longer than its session lasts: before anything that has waited meanwhile, and
        before the EXPIRED that follows."""
        ...

    def on_node(self, path: str) -> None:
        """A watched node changed (one-shot)."""
        ...

    def end_turn(self) -> None:
        """The shell has just delivered a completion (`done`): drain the effects. Called once after each of them."""
        ...

    def background(self, budget_ns: int) -> bool:
        """Idle work (loading, retention, flushing); True = more is waiting."""
        ...


class World(NamedTuple):
    """All the seams a broker is given."""

    clock: Clock
    entropy: Entropy
    disks: Sequence[Disk]
    """One per entry of `log.dirs`, in that order."""
    network: Network
    workers: Workers
    store: MetadataStore | None = None
    """The metadata store outside; None: the broker keeps its own on its first disk."""
    broker_secret: bytes | None = None
    """What brokers of this cluster prove to know before a connection counts as a broker's; None: its listener tells."""
