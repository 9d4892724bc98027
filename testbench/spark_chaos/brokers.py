"""Killing the broker that plays a part for the query at this very moment, out of three that a supervisor starts again.

Zone: real. Runs where the strike hits: in a Python worker of Spark, or in its driver.
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
    """SIGKILL to the leader of the topic's first partition, to who coordinates the transaction, or to the controller.

    status: what the supervisor tells of its brokers; of Apache Kafka's also which one is the controller.
    """
    with Cluster(ClientConfig(bootstrap_servers=bootstrap)) as cluster:
        if role == "leader":
            number = cluster.topic(topic).partitions[0].leader
        elif role == "coordinator":
            number = CoordinatorCalls(cluster, CoordinatorKind.TRANSACTION).find(transactional_id)
        else:
            number = _told(status).get("controller") or Admin(cluster).describe_cluster().controller_id
    os.kill({each["id"]: each["pid"] for each in _told(status)["brokers"]}[number], signal.SIGKILL)


def _told(status: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(status.read_text())
    return told
