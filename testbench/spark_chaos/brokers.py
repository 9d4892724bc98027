"""Kills the broker that the query needs at this moment, one of three that a supervisor restarts.

Zone: real. Runs at the point of the strike: in a Python worker of Spark, or in its driver.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from ottla.client.admin.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.client.settings import ClientConfig

ROLES = ("leader", "coordinator", "controller")


def kill(role: str, status: Path, bootstrap: str, topic: str, transactional_id: str) -> None:
    """SIGKILL to the leader of the topic's first partition, the coordinator of the transaction, or the controller.

    status: the supervisor's report about its brokers; for Apache Kafka with the controller.
    """
    with Cluster(ClientConfig(bootstrap_servers=bootstrap)) as cluster:
        if role == "leader":
            number = cluster.topic(topic).partitions[0].leader
        elif role == "coordinator":
            number = CoordinatorCalls(cluster, CoordinatorKind.TRANSACTION).find_coordinator(transactional_id)
        else:
            number = _told(status).get("controller") or Admin(cluster).describe_cluster().controller_id
    os.kill({each["id"]: each["pid"] for each in _told(status)["brokers"]}[number], signal.SIGKILL)


def _told(status: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(status.read_text())
    return told
