"""Several brokers on one machine: their metadata store, their processes, and the port that they share.

Zone: real. `local_cluster_spec` computes the configuration of each broker, `znode_server` serves the store,
`fork_server` forks the brokers. Brokers learn from the store alone which brokers live and lead: the supervisor decides
nothing about topics.

Start: the directory is locked; the store is read and served; the shared port is bound; the brokers are started, all at
once, and the cluster is ready when all of them are. A broker that ends is started again, with growing pauses, and its
session ends at the same moment as its process, so that others take over without waiting for a time-out.
Roll: one broker after the other, the controller last, each only while every partition has all its replicas in sync.
Stop: the brokers, all at once and without moving leaders; then the store, when all of it is on the disk; then the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from ottla.seams import Failure, Kind
from ottla.server.connections.broker_handshake import new_secret
from ottla.server.connections.listener import ConnectionLimits, bound_socket, reachable_host
from ottla.server.disks.data_dir_lock import DirectoryLock
from ottla.server.os_errors import failure_of
from ottla.server.supervisor.fork_server_client import ForkServerClient
from ottla.server.supervisor.local_cluster_spec import (
    SHARED,
    LocalClusterSpec,
    StoreSpec,
    controller_of,
    directory_of,
    properties_of,
    session_of,
    under_replicated,
)
from ottla.server.supervisor.status_report import StatusReport, remove_digest, remove_pid, write_digest, write_pid
from ottla.server.zookeeper.znode_client import ZnodeLimits
from ottla.server.zookeeper.znode_server import ZnodeServer
from ottla.types import Endpoint
from ottla.znodes.records import CorruptStore

log = logging.getLogger(__name__)

STOP_S: Final = 60.0
"""Time for a broker to move its leaderships and stop; after that it is killed."""
ROLL_S: Final = 300.0
"""Time for all replicas to be in sync again after a broker was rolled."""
LOOK_AGAIN_S: Final = 0.05
"""Between two checks of all partitions while brokers are rolled."""
FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 30.0
"""Pauses before a broker is started again: doubled each time; the first one again after it was ready for STEADY_S."""
STEADY_S: Final = 3.0
LOCKS_S: Final = 10.0
"""Time for the brokers of a supervisor that was killed to end."""
BACKLOG: Final = 1024


class Keeper:
    """The supervisor's state of one broker."""

    def __init__(self, broker: int, port: int) -> None:
        self.broker = broker
        self.port = port
        self.pid = 0
        self.state = "starting"
        """starting, ready, stopping, down"""
        self.restarts = 0
        self.pause_s = FIRST_PAUSE_S
        self.ready_at = 0.0
        self.why = ""
        """Why it could not start, as it reported."""
        self.is_rolling = False
        """A roll is restarting it: it must not be started again here."""
        self.fork_server: ForkServerClient | None = None
        """The fork server that is the parent of its process."""
        self.changed = asyncio.Event()
        """Set at every change of `state`."""

    def change_state(self, state: str) -> None:
        """Change the state."""
        self.state = state
        self.changed.set()

    async def wait_for_state(self, *states: str) -> str:
        """Wait for one of these states, and return it. The broker may have another one when the caller runs."""
        while self.state not in states:
            # No other task runs between this line and `wait`, so a change of the state cannot be missed.
            self.changed.clear()
            await self.changed.wait()
        return self.state

    @property
    def status_row(self) -> dict[str, Any]:
        """For `status.json`."""
        return {
            "id": self.broker,
            "pid": self.pid or None,
            "port": self.port,
            "state": self.state,
            "restarts": self.restarts,
        }


class Supervisor:
    """One local cluster, from start to stop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fleet: LocalClusterSpec, board: StatusReport) -> None:
        self.loop = loop
        self._fleet = fleet
        self._advertised = fleet.advertised or reachable_host(fleet.host)
        self._board = board
        self._digest = f"ottla:{new_secret().hex()}"
        """The store's credentials, for the brokers and for people who inspect the store."""
        self._store = ZnodeServer(loop, fleet.data, ZnodeLimits(digest=self._digest.encode()))
        self._secret = new_secret()
        """The secret by which the brokers recognize each other. They receive it through the fork server's socket."""
        self._shared: socket.socket | None = None
        self._keepers: dict[int, Keeper] = {}
        self._fork_servers: list[ForkServerClient] = []
        """The last fork server starts brokers; an earlier one is closed when it has no broker left."""
        self._stop_asked = asyncio.Event()
        self._stopping = False
        self._rolling = False
        self._rolls = {"asked": 0, "done": 0, "failed": 0}
        self._store_changed = asyncio.Event()
        """Set at every change of the store."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bootstrap(self) -> str:
        """host:port of the listener that all brokers share."""
        assert self._shared is not None, "the port is not bound yet"
        host, port = self._advertised, self._shared.getsockname()[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def run_cluster(self, on_ready: Callable[[], None]) -> None:
        """Run the cluster from start to stop. Raises Failure when it cannot start, or cannot stop in order."""
        with contextlib.ExitStack() as undo:
            undo.callback(_directory_lock(self._fleet.data).release_lock)
            self._load_store()
            try:
                await self._start_brokers()
                if not self._stop_asked.is_set():
                    on_ready()
                    self._report_ready()
                await self._stop_asked.wait()
            finally:
                await self._stop_all()

    def ask_to_stop(self) -> None:
        """Stop in order."""
        self._stop_asked.set()

    def stop_at_once(self) -> None:
        """Kill the brokers; the next start recovers their logs."""
        for nursery in self._fork_servers:
            nursery.kill_process()

    def ask_to_roll(self) -> None:
        """Restart the brokers, one by one."""
        self._rolls["asked"] += 1
        if not self._rolling:
            self._rolling = True
            self._create_task(self._run_rolls())

    # -- start -------------------------------------------------------------------------------------------------------

    def _load_store(self) -> None:
        try:
            self._store.load_store()
        except CorruptStore as corrupt:
            raise Failure(Kind.NOT_DONE, f"{self._fleet.data}: {corrupt}") from None
        self._store.on_change = self._store_changed.set
        self._store.on_failed = self.ask_to_stop  # stopping the store then raises the reason

    async def _start_brokers(self) -> None:
        fleet = self._fleet
        await self._store.start_listening("127.0.0.1", 0)
        try:
            write_digest(fleet.data, self._digest)
        except OSError as error:
            raise failure_of(error, fleet.data) from None
        self._shared = bound_socket(Endpoint(SHARED, fleet.host, fleet.port), ConnectionLimits())
        self._shared.listen(BACKLOG)
        self._shared.set_inheritable(True)
        first = self._shared.getsockname()[1]
        # A broker's own port is the shared one plus its id, if that port is free.
        for broker in fleet.brokers:
            self._keepers[broker] = Keeper(broker, _port_for(fleet.host, first + broker, [*self._taken_ports(), first]))
            await _wait_for_lock(directory_of(fleet.data, broker))
        self._start_fork_server()
        for keeper in self._keepers.values():
            self._launch_broker(keeper)
        await self._wait_until_ready()

    def _report_ready(self) -> None:
        write_pid(self._fleet.data, os.getpid())
        names = ",".join(map(str, self._keepers))
        store = f"127.0.0.1:{self._store.port}"
        text = f"ready bootstrap={self.bootstrap} brokers={names} store={store}"
        self._report_event("ready", text, bootstrap=self.bootstrap, brokers=list(self._keepers), store=store)

    def _taken_ports(self) -> list[int]:
        return [keeper.port for keeper in self._keepers.values()]

    def _start_fork_server(self) -> None:
        assert self._shared is not None
        self._fork_servers.append(
            ForkServerClient(self.loop, [self._shared.fileno()], self._on_news, self._on_fork_server_lost)
        )

    def _launch_broker(self, keeper: Keeper) -> None:
        assert self._shared is not None
        # The newest one: after a roll, a broker that ends on its own also starts again with the newer version.
        keeper.fork_server = self._fork_servers[-1]
        keeper.change_state("starting")
        keeper.why = ""
        store = StoreSpec(f"127.0.0.1:{self._store.port}", self._digest)
        first = self._shared.getsockname()[1]
        properties = properties_of(self._fleet, keeper.broker, keeper.port, first, store, self._advertised)
        keeper.fork_server.send_order(
            start=keeper.broker,
            properties=properties,
            log=self._fleet.log,
            listening={SHARED: self._shared.fileno()},
            secret=self._secret.hex(),
        )

    async def _wait_until_ready(self) -> None:
        """Wait until all brokers are ready, or a stop is requested. Raises Failure when one cannot start."""
        stop = asyncio.ensure_future(self._stop_asked.wait())
        try:
            for keeper in self._keepers.values():
                ready = asyncio.ensure_future(keeper.wait_for_state("ready", "down"))
                await asyncio.wait((stop, ready), return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    ready.cancel()
                    return
                if ready.result() == "down":
                    raise Failure(Kind.NOT_DONE, f"broker {keeper.broker}: {keeper.why or 'ended while it started'}")
        finally:
            stop.cancel()

    # -- news from the fork server -----------------------------------------------------------------------------------

    def _on_news(self, news: Mapping[str, Any]) -> None:
        if "started" in news:
            self._on_started(self._keepers[news["started"]], news["pid"])
        elif "ready" in news:
            self._on_broker_ready(self._keepers[news["ready"]])
        elif "failed" in news:
            self._keepers[news["failed"]].why = news["why"]
        else:
            self._on_exited(self._keepers[news["exited"]], news["status"])
        self._write_status()

    def _on_started(self, keeper: Keeper, pid: int) -> None:
        keeper.pid = pid
        try:
            write_pid(directory_of(self._fleet.data, keeper.broker), pid)
        except OSError as error:
            log.error("cannot write the pid file of broker %d: %s", keeper.broker, error.strerror)

    def _on_broker_ready(self, keeper: Keeper) -> None:
        keeper.ready_at = self.loop.time()
        if keeper.state != "starting":
            return
        keeper.change_state("ready")
        self._report_event(
            "broker_ready",
            f"broker {keeper.broker} ready pid={keeper.pid} port={keeper.port}",
            broker=keeper.broker,
            pid=keeper.pid,
            port=keeper.port,
        )

    def _on_exited(self, keeper: Keeper, status: int) -> None:
        """A broker's process has ended: end its session, and start it again after a pause."""
        # 1. The session first: the other brokers take over when it ends.
        session = session_of(self._store.tree, keeper.broker)
        if session is not None:
            self._store.expire_session(session)
        remove_pid(directory_of(self._fleet.data, keeper.broker))
        was, pid, keeper.pid = keeper.state, keeper.pid, 0
        keeper.change_state("down")
        # 2. A stop wants it down; a roll starts it again itself.
        if self._stopping or keeper.is_rolling:
            return
        # 3. Only a broker that was ready for a while gets the short pause again: one that fails at every start must
        #    not keep the machine busy.
        if was == "ready" and self.loop.time() - keeper.ready_at >= STEADY_S:
            keeper.pause_s = FIRST_PAUSE_S
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        self._report_event(
            "broker_ended",
            f"broker {keeper.broker} {how}; starts again in {keeper.pause_s:g} s",
            broker=keeper.broker,
            pid=pid,
            status=status,
            restart_in_s=keeper.pause_s,
        )
        self.loop.call_later(keeper.pause_s, self._start_again, keeper)
        keeper.pause_s = min(2 * keeper.pause_s, LAST_PAUSE_S)

    def _start_again(self, keeper: Keeper) -> None:
        if keeper.state == "down" and not self._stopping and not keeper.is_rolling:
            keeper.restarts += 1
            self._launch_broker(keeper)

    def _on_fork_server_lost(self, nursery: ForkServerClient) -> None:
        """A fork server was killed, and its brokers with it: start a new one, which starts them again."""
        self._fork_servers.remove(nursery)
        if self._stopping:
            return
        log.error("fork server (pid %d) ended and took its brokers with it; restarting all of them", nursery.pid)
        if not self._fork_servers:
            self._start_fork_server()
        for keeper in self._keepers.values():
            if keeper.fork_server is nursery and keeper.state != "down":
                self._on_exited(keeper, -signal.SIGKILL)
        self._write_status()

    # -- roll --------------------------------------------------------------------------------------------------------

    async def _run_rolls(self) -> None:
        try:
            # A request that came during a roll is served by another one, which may run a newer version.
            while self._rolls["done"] + self._rolls["failed"] < self._rolls["asked"]:
                asked = self._rolls["asked"] - self._rolls["failed"]
                why = await self._roll_all()
                if why is None:
                    self._rolls["done"] = asked
                    self._report_event("roll_finished", "roll finished")
                else:
                    self._rolls["failed"] += 1
                    self._report_event("roll_failed", f"roll stopped: {why}", why=why)
        finally:
            self._rolling = False

    async def _roll_all(self) -> str | None:
        """Restart all brokers; returns None, or the reason why it stopped."""
        self._report_event("roll_started", "roll: one broker after the other")
        self._start_fork_server()  # a new process, so that the brokers run a version that was installed since the start
        # The controller last: each earlier position would move it to a broker that is restarted later.
        controller = controller_of(self._store.tree)
        for broker in sorted(self._keepers, key=lambda number: (number == controller, number)):
            missing = await self._wait_in_sync()
            if missing:
                names = ", ".join(missing[:5])
                return f"{len(missing)} partitions lack replicas in sync before broker {broker}: {names}"
            if not await self._roll_one(self._keepers[broker]):
                return f"broker {broker} was not ready again within {ROLL_S:g} s"
        self._close_old_fork_servers()
        missing = await self._wait_in_sync()
        return f"{len(missing)} partitions lack replicas in sync: {', '.join(missing[:5])}" if missing else None

    def _close_old_fork_servers(self) -> None:
        for nursery in self._fork_servers[:-1]:
            if all(keeper.fork_server is not nursery for keeper in self._keepers.values()):
                self._fork_servers.remove(nursery)
                nursery.end_process()

    async def _roll_one(self, keeper: Keeper) -> bool:
        """Stop a broker in order and start it; returns whether it is ready again within ROLL_S."""
        keeper.is_rolling = True
        try:
            await keeper.wait_for_state("ready", "down")
            if keeper.state == "ready":
                await self._stop_broker(keeper, signal.SIGTERM)
        finally:
            keeper.is_rolling = False
        keeper.pause_s = FIRST_PAUSE_S
        self._start_again(keeper)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(keeper.wait_for_state("ready"), ROLL_S)
        return keeper.state == "ready"

    async def _wait_in_sync(self) -> list[str]:
        """Wait until all replicas are in sync; returns the partitions that are not within ROLL_S."""
        deadline = self.loop.time() + ROLL_S
        while True:
            # Cleared before the tree is read: a change after the read sets it again, so that no change is missed.
            self._store_changed.clear()
            missing = under_replicated(self._store.tree)
            left = deadline - self.loop.time()
            if not missing or left <= 0 or self._stopping:
                return missing
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._store_changed.wait(), left)
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _stop_broker(self, keeper: Keeper, number: int) -> None:
        """Signal a broker and wait for its end; kill it after STOP_S."""
        assert keeper.fork_server is not None
        if keeper.state != "stopping":  # a second signal would end it at once, without a clean shutdown
            keeper.change_state("stopping")
            keeper.fork_server.send_order(signal=keeper.broker, number=int(number))
        try:
            await asyncio.wait_for(keeper.wait_for_state("down"), STOP_S)
        except TimeoutError:
            log.error("broker %d did not stop within %g s: killing it", keeper.broker, STOP_S)
            keeper.fork_server.send_order(signal=keeper.broker, number=int(signal.SIGKILL))
            await keeper.wait_for_state("down")

    # -- stop --------------------------------------------------------------------------------------------------------

    async def _stop_all(self) -> None:
        """Stop the brokers, then the store. Leaders are not moved, because no broker stays to take them."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        self._write_status()
        await asyncio.gather(*(self._stop_broker(keeper, signal.SIGUSR1) for keeper in self._running_brokers()))
        while self._fork_servers:
            self._fork_servers.pop().end_process()
        if self._shared is not None:
            self._shared.close()
        try:
            # The store after the brokers: in their shutdown they still write to it.
            await self._store.stop_serving()
        finally:
            remove_pid(self._fleet.data)
            remove_digest(self._fleet.data)
            self._write_status()
        self._report_event("stopped", "stopped")

    def _running_brokers(self) -> list[Keeper]:
        return [one for one in self._keepers.values() if one.fork_server is not None and one.state != "down"]

    # -- reports -----------------------------------------------------------------------------------------------------

    def _create_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report_event(self, event: str, text: str, **fields: Any) -> None:
        self._write_status()
        self._board.report_event(event, text, **fields)

    def _write_status(self) -> None:
        self._board.write_status(
            {
                "pid": os.getpid(),
                "state": "stopping" if self._stopping else "running",
                "bootstrap": self.bootstrap if self._shared is not None and self._shared.fileno() >= 0 else None,
                "store": f"127.0.0.1:{self._store.port}",
                "brokers": [keeper.status_row for keeper in self._keepers.values()],
                "rolls": self._rolls,
            }
        )


def _directory_lock(data: str) -> DirectoryLock:
    """Lock the data directory. Raises Failure when another supervisor, or a single broker, has it."""
    try:
        os.makedirs(data, exist_ok=True)
    except OSError as error:
        raise failure_of(error, data) from None
    return DirectoryLock(data)


async def _wait_for_lock(directory: str) -> None:
    """Wait until the directory's lock is free: the brokers of a killed supervisor end a moment after it. Raises
    Failure when it is not free within LOCKS_S."""
    for _ in range(int(LOCKS_S / 0.05)):
        try:
            _directory_lock(directory).release_lock()
        except Failure as failure:
            if failure.kind is not Kind.CONFLICT:
                raise
            await asyncio.sleep(0.05)
        else:
            remove_pid(directory)
            return
    _directory_lock(directory).release_lock()


def _port_for(host: str, wanted: int, taken: list[int]) -> int:
    """The wanted port, or a free one when the wanted one is in use. Raises Failure when none is free."""
    for port in (wanted if wanted < 65536 else 0, 0, 0, 0):
        with contextlib.suppress(Failure):
            # Bound only to see whether it is free, and released: the broker binds it by itself. Another program may
            # take it in between; then the broker reports that it cannot start.
            with bound_socket(Endpoint(SHARED, host, port), ConnectionLimits()) as sock:
                found: int = sock.getsockname()[1]
            if found not in taken:
                if found != wanted:
                    log.warning("port %d is in use: the broker listens on port %d instead", wanted, found)
                return found
    raise Failure(Kind.NOT_DONE, f"no port is free at {host}: choose another --port or --host")
