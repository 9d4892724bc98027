"""The start of a broker: whose the logs are, their import, their recovery.

Zone: deterministic. `ottla.cluster.membership` calls these steps in its order, once there is a session with the
metadata store; `ready_check` follows when the broker is registered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.broker.listener import BrokerListener
from ottla.cluster.cluster import Cluster
from ottla.cluster.log_import import import_logs
from ottla.cluster.membership import MembershipSteps
from ottla.cluster.store.workflow import Workflow
from ottla.config.broker import BrokerConfig
from ottla.errors import ApiError, ErrorCode
from ottla.replication.replica_manager import ReplicaManager
from ottla.seams import Failure
from ottla.storage.checkpoints import CorruptCheckpoint
from ottla.storage.errors import WrongDirectory
from ottla.storage.log_manager import LogManager

_log = logging.getLogger(__name__)


class Startup:
    """The broker's part of joining its cluster."""

    def __init__(
        self,
        config: BrokerConfig,
        cluster: Cluster,
        logs: LogManager,
        replicas: ReplicaManager,
        is_alone: bool,
        listener: BrokerListener,
    ) -> None:
        """is_alone: the metadata store is embedded, so that logs may be imported into it."""
        self.listening = False
        """Whether other brokers may write to it, so the listeners have to be open."""
        self.failed: Failure | None = None
        """Why it cannot become ready."""
        self._config = config
        self._cluster = cluster
        self._logs = logs
        self._replicas = replicas
        self._imports = config.ottla_adopt_logs and is_alone
        self._listener = listener

    def membership_steps(self) -> MembershipSteps:
        """The steps for `Membership`."""
        return MembershipSteps(
            self._stored_cluster_id,
            self._logs.has_blank_dir,
            self._logs.topic_names,
            self._logs.incomplete_partitions,
            lambda new_id: self._import_steps(new_id) if self._imports else None,
            self._recover_logs,
            self._on_failed,
        )

    def _stored_cluster_id(self) -> str | None:
        try:
            return self._logs.stored_cluster_id()
        except WrongDirectory as wrong:
            raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, str(wrong)) from None
        except Failure:
            return None  # claiming that directory takes it offline later

    def _import_steps(self, new_id: Callable[[], bytes]) -> Workflow[None]:
        cluster_id = self._stored_cluster_id()
        assert cluster_id is not None, "only logs of another cluster are adopted"
        self._check_owner(cluster_id)
        try:
            found = self._logs.found_logs()
        except (Failure, CorruptCheckpoint) as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the logs cannot be adopted: {error}") from None
        yield from import_logs(found, self._config, new_id)

    def _check_owner(self, cluster_id: str) -> None:
        try:
            self._logs.claim_directories(cluster_id, self._config.node_id, check_only=True)
        except WrongDirectory as wrong:
            raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, str(wrong)) from None

    def _recover_logs(self, cluster_id: str) -> bool:
        """Recover the logs when the cluster and its settings are known. Other brokers may write from now on."""
        self._check_owner(cluster_id)
        # Loading repairs logs, which writes to the directories. So their owner was checked before: they may be those of
        # another broker, mounted here by mistake.
        if not self._logs.load_logs(self._cluster.topic_config, is_wanted=self._listener.is_wanted):
            return False
        self._replicas.start_checks()
        self.listening = True
        self._listener.on_listening()
        return True

    def _on_failed(self, failure: Failure) -> None:
        _log.error("broker %d cannot start: %s", self._config.node_id, failure)
        self.failed = failure

    # -- when the controller has assigned what it knows -------------------------------------------------------------

    def report_strays(self) -> None:
        """Report logs that the cluster does not know; they stay on disk, so that no data is lost."""
        for log in self._logs.online_logs():
            if not self._replicas.is_hosted(log.tp):
                _log.warning("%s/%s is not a replica of this broker; keeping its log on disk", log.disk.name, log.tp)

    def claim_blank_dirs(self, cluster_id: str | None) -> None:
        """Mark new log directories as this broker's, now that the controller knows that they are new."""
        self._logs.forget_missing()
        if cluster_id is not None and self._logs.has_blank_dir():
            self._logs.claim_directories(cluster_id, self._config.node_id)
