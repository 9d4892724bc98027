"""Killing the broker that plays a part for the query at this very moment, out of three that a supervisor starts again.

Zone: real. Runs where the strike hits: in a Python worker of Spark, or in its driver.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from ottla.client.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.client.settings import ClientConfig

ROLES = ("leader", "coordinator", "controller")


def kill(role: str, status: Path, bootstrap: str, topic: str, transactional_id: str) -> None:
    """SIGKILL to the leader of the topic's first partition, to who coordinates the transaction, or to the controller.

    status: what the supervisor tells of its brokers.
    """
    with Cluster(ClientConfig(bootstrap_servers=bootstrap)) as cluster:
        if role == "leader":
            number = cluster.topic(topic).partitions[0].leader
        elif role == "coordinator":
            number = CoordinatorCalls(cluster, CoordinatorKind.TRANSACTION).find(transactional_id)
        else:
            number = Admin(cluster).describe_cluster().controller_id
    brokers = {each["id"]: each["pid"] for each in json.loads(status.read_text())["brokers"]}
    os.kill(brokers[number], signal.SIGKILL)
