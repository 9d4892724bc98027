"""The parts of a support bundle: documents about a cluster, without secrets, each bounded in size and time.

Zone: real. Reads the cluster, pages of metrics and local log files; changes nothing.
"""

from __future__ import annotations

import json
import os
import platform
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import ottla
from ottla.cli.log_dirs import dir_documents
from ottla.cli.options import ClientSettings
from ottla.cli.views.cluster_views import read_cluster
from ottla.cli.views.group_views import read_group
from ottla.cli.views.health import health_document, read_health
from ottla.cli.views.output import Json, time_text
from ottla.cli.views.samples import read_page
from ottla.client import Admin, ClientError, Cluster, ConfigEntry, Resource, ResourceType
from ottla.client.admin.groups import GroupAdmin
from ottla.client.connections.broker_probes import BrokerProbe, probe_brokers
from ottla.client.retry import Deadline, wall_ms
from ottla.client.settings import ClientConfig

PART_BYTES: Final = 16 << 20
"""A part is cut after as many bytes."""
_LOG_BYTES: Final = 4 << 20
_TOPICS: Final = 2_000
_GROUPS: Final = 200
_PART_MS: Final = 20_000
_SECRET: Final = re.compile(r"(?i)passw|secret|jaas|private|credential|token|\bkey(?:store)?\.(?:pem|key)")
"""Names of settings whose values are left out, whatever the broker says of them."""
_SECRET_TEXT: Final = re.compile(
    r"(?i)((?:passw(?:or)?d|secret|jaas|token|credential)[\w.-]{0,40}\"?\s{0,3}[=:]\s{0,3})"
    r"(\"[^\"\n]{0,4096}\"|'[^'\n]{0,4096}'|[^\s,;]+)"
)
"""Bounded repetitions: a log is any text, and is searched in linear time."""
_HIDDEN: Final = "[hidden]"


class Part(NamedTuple):
    """A file of the bundle."""

    name: str
    read: Callable[[], bytes]
    """May raise any error, which becomes the content of the file."""


def cluster_parts(config: ClientConfig, cluster: Cluster, given: ClientSettings) -> list[Part]:
    """The parts that describe this client and the cluster."""
    admin = Admin(cluster)
    return [
        _json_part("about", lambda: _about_document(given)),
        _json_part("health", lambda: health_document(read_health(config))),
        _json_part("api-versions", lambda: [_probe_document(each) for each in probe_brokers(config).brokers]),
        _json_part("cluster", lambda: read_cluster(admin).document()),
        _json_part("topics", lambda: _topic_documents(admin)),
        _json_part("broker-configs", lambda: _broker_configs(cluster, admin)),
        _json_part("topic-configs", lambda: _topic_configs(admin)),
        _json_part("groups", lambda: list(_group_documents(cluster))),
        _json_part("log-dirs", lambda: dir_documents({
            node: dirs if isinstance(dirs, list) else [dirs] for node, dirs in admin.describe_log_dirs().items()
        })),
    ]  # fmt: skip


def file_parts(pages: Sequence[str], logs: Sequence[str]) -> list[Part]:
    """Pages of metrics, and the ends of log files."""
    return [
        *(Part(f"metrics-{at}.txt", lambda page=page: read_page(page).encode()) for at, page in enumerate(pages, 1)),  # type: ignore[misc]
        *(
            Part(f"logs/{at}-{os.path.basename(path)}", lambda path=path: read_log_end(path))  # type: ignore[misc]
            for at, path in enumerate(logs, 1)
        ),
    ]


def _json_part(name: str, read: Callable[[], Json]) -> Part:
    return Part(f"{name}.json", lambda: json.dumps(read(), indent=1, ensure_ascii=False).encode("utf-8", "replace"))


def _about_document(given: ClientSettings) -> Json:
    """Versions, and the names of the client's settings: of their values only those that cannot be secret."""
    # A list of what may be shown: a new setting is hidden until it is added here.
    shown = ("bootstrap.servers", "security.protocol", "client.id")
    return {
        "ottla": ottla.__version__,
        "python": sys.version,
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "time": time_text(wall_ms()),
        "client_settings": {key: value if key in shown else _HIDDEN for key, value in sorted(given.items())},
    }


def _probe_document(probe: BrokerProbe) -> Json:
    return {
        "id": probe.node_id,
        "address": str(probe.address),
        "error": None if probe.error is None else str(probe.error),
        "apis": {str(key): list(versions) for key, versions in sorted(probe.versions.items())},
        "features": [list(each) for each in probe.features],
    }


def _topic_documents(admin: Admin) -> Json:
    topics = admin.list_topics(internal=True)
    shown: list[Json] = [
        {
            "topic": topic.name,
            "partitions": [
                {"partition": part.partition, "leader": part.leader, "replicas": list(part.replicas),
                 "isr": list(part.isr), "offline": list(part.offline)}
                for part in topic.partitions.values()
            ],
        }
        for topic in topics[:_TOPICS]
    ]  # fmt: skip
    return {"count": len(topics), "topics": shown}


def _broker_configs(cluster: Cluster, admin: Admin) -> Json:
    nodes = sorted(cluster.refresh((), cluster.deadline()).nodes)
    return _config_documents(admin, [Resource(ResourceType.BROKER, str(node)) for node in nodes])


def _topic_configs(admin: Admin) -> Json:
    names = [each.name for each in admin.list_topics(internal=True)][:_TOPICS]
    return _config_documents(admin, [Resource(ResourceType.TOPIC, name) for name in names])


def _config_documents(admin: Admin, resources: Sequence[Resource]) -> Json:
    """The settings that are not defaults, by name of their owner."""
    found = admin.describe_configs(resources) if resources else {}
    return {
        resource.name: str(entries)
        if isinstance(entries, ClientError)
        else {each.name: setting_value(each) for each in entries if not each.is_default}
        for resource, entries in found.items()
    }


def setting_value(entry: ConfigEntry) -> str | None:
    """The value of a setting, unless it may be a secret: by what the broker says, or by its name."""
    # 1. Brokers mark passwords, but old ones and plug-ins not all. 2. A value may contain a secret within, as JAAS.
    if entry.sensitive or _SECRET.search(entry.name):
        return _HIDDEN
    return None if entry.value is None else hide_secrets(entry.value)


def _group_documents(cluster: Cluster) -> Iterator[Json]:
    listed, failed = GroupAdmin(cluster).list_groups()
    end = Deadline.after_ms(_PART_MS)
    yield {"count": len(listed), "errors": {str(node): str(error) for node, error in failed.items()}}
    for at, each in enumerate(listed[:_GROUPS]):
        # Each group takes several requests, and a cluster may have thousands of them.
        if end.expired:
            yield {"left_out": len(listed) - at, "reason": f"after {_PART_MS // 1000} s no more groups were read"}
            return
        try:
            yield read_group(cluster, each.group_id).document()
        except ClientError as error:
            yield {"group": each.group_id, "error": str(error)}


def read_log_end(path: str) -> bytes:
    """The last 4 MiB of a file, in whole lines, without passwords. Raises OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # to open a pipe may take for ever
        raise OSError(f"{path} is not a regular file")
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        content = file.read(_LOG_BYTES)
    if size > _LOG_BYTES:
        # The first line is cut: the name of a password may be in the part that is missing, and its value in the rest.
        content = content.partition(b"\n")[2]
    return hide_secrets(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def hide_secrets(text: str) -> str:
    """The text without the values of what looks like a password, a secret or a token."""
    return _SECRET_TEXT.sub(rf"\g<1>{_HIDDEN}", text)
