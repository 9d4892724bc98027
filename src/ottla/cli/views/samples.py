"""Takes the samples from which `ottla top` computes rates.

Zone: real. A sample is one request to each broker for offsets and for sizes, one for each group, and one for each page
of metrics. A part that fails is left out of the sample; the next one may have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.request import Request, urlopen

import click

from ottla.cli.options import print_note
from ottla.cli.views.rates import Offsets, Sample, parse_counters
from ottla.client import LATEST, Admin, ClientError, Cluster, LogDir, OffsetFound, TopicView
from ottla.client.admin.groups import GroupAdmin, GroupOffset
from ottla.types import TopicPartition

T = TypeVar("T")
_METRICS_S: Final = 5.0
_PAGE_S: Final = 30.0
_CHUNK: Final = 1 << 16
_METRICS_BYTES: Final = 32 << 20
_GROUPS: Final = 100
"""More groups than these are only read when they are named."""


class Sampler:
    """Takes samples of topics and groups."""

    def __init__(self, cluster: Cluster, topics: Sequence[str], groups: Sequence[str], pages: Sequence[str]) -> None:
        """topics, groups: none: all. pages: addresses of brokers' metrics. Raises click.UsageError."""
        for each in pages:
            if not each.startswith(("http://", "https://")):
                raise click.UsageError(f"{each!r} is not an address of metrics: use http://HOST:PORT/metrics")
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._group_admin = GroupAdmin(cluster)
        self._topics = topics
        self._groups = groups
        self._pages = pages
        self._noted: set[str] = set()

    def take_sample(self) -> Sample:
        """Raises ClientError when the topics cannot be read."""
        leaders = self._find_leaders()
        found = self._admin.list_offsets(dict.fromkeys(leaders, LATEST)) if leaders else {}
        # After the offsets: they are what most rates come from.
        now = time.monotonic()
        ends = {tp: each.offset for tp, each in found.items() if isinstance(each, OffsetFound)}
        counters = self._read_counters()
        sizes = None if counters else self._try_part("sizes of logs", lambda: self._read_sizes(leaders))
        groups = self._try_part("groups", self._read_groups)
        return Sample(now, ends, sizes or {}, groups or {}, counters)

    def _find_leaders(self) -> dict[TopicPartition, int]:
        """The leader of each partition that has one."""
        views: Sequence[TopicView] = self._admin.list_topics(internal=bool(self._topics))
        if missing := sorted(set(self._topics) - {view.name for view in views}):
            # Its error has Kafka's code, and the exit code that follows from it.
            self._cluster.topic(missing[0])
        return {
            TopicPartition(view.name, part.partition): part.leader
            for view in views
            if not self._topics or view.name in self._topics
            for part in view.partitions.values()
            if part.leader >= 0
        }

    def _read_sizes(self, leaders: dict[TopicPartition, int]) -> Offsets:
        sizes: dict[TopicPartition, int] = {}
        # Only brokers that lead: one that is dead would be waited for in each round.
        found = self._admin.describe_log_dirs(list(leaders), nodes=set(leaders.values()))
        for node, dirs in found.items():
            for each in dirs if isinstance(dirs, list) else ():
                for replica in each.replicas if isinstance(each, LogDir) else ():
                    if leaders.get(replica.tp) == node and not replica.is_future:
                        sizes[replica.tp] = replica.size
        return sizes

    def _read_groups(self) -> dict[str, Offsets]:
        names = list(self._groups)
        if not names:
            names = [each.group_id for each in self._group_admin.list_groups()[0]]
            if len(names) > _GROUPS:
                self._note_once(f"{len(names) - _GROUPS} of {len(names)} groups are left out: name them with --group")
        return {name: self._read_positions(name) for name in names[: len(self._groups) or _GROUPS]}

    def _read_positions(self, name: str) -> Offsets:
        found = self._try_part(f"group {name}", lambda: self._group_admin.group_offsets(name))
        return {tp: each.offset for tp, each in (found or {}).items() if isinstance(each, GroupOffset)}

    def _read_counters(self) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for page in self._pages:
            try:
                counters = parse_counters(read_page(page))
            # One broker without its numbers would make the sum of the others look like all.
            except (OSError, ValueError) as error:
                self._note_once(f"{page} cannot be read, bytes are those of log sizes: {error}")
                return {}
            for key, value in counters.items():
                found[key] = found.get(key, 0.0) + value
        return found

    def _try_part(self, name: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except ClientError as error:
            self._note_once(f"{name} cannot be read: {error}")
            return None

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            print_note(text)


def read_page(address: str) -> str:
    """The text of a page of metrics, of at most 32 MiB that come within 30 s. Raises OSError."""
    end = time.monotonic() + _PAGE_S
    parts: list[bytes] = []
    size = 0
    with urlopen(Request(address), timeout=_METRICS_S) as answer:  # noqa: S310  # the scheme was checked
        while part := answer.read1(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > _METRICS_BYTES:
                raise OSError(f"it is longer than {_METRICS_BYTES} bytes")
            # A server that sends a byte now and then never runs into the timeout of a read.
            if time.monotonic() > end:
                raise TimeoutError(f"it did not end within {_PAGE_S:g} s")
    return b"".join(parts).decode("utf-8", "replace")
