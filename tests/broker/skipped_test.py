"""Every API of the protocol has a handler or a row in docs/skipped.md, and none has both.

Zone: real.
"""

from __future__ import annotations

import re
from pathlib import Path

from ottla.broker.log_dir_handlers import LogDirHandlers
from ottla.broker.log_handlers import LogHandlers
from ottla.cluster.handlers.client_handlers import ClientHandlers
from ottla.cluster.handlers.config_handlers import ConfigHandlers
from ottla.cluster.handlers.controller_handlers import ControllerHandlers
from ottla.cluster.handlers.metadata_handlers import MetadataHandlers
from ottla.cluster.handlers.reassignment_handlers import ReassignmentHandlers
from ottla.cluster.handlers.topic_handlers import TopicHandlers
from ottla.cluster.handlers.update_handlers import UpdateHandlers
from ottla.groups.handlers.admin_handlers import GroupAdminHandlers
from ottla.groups.handlers.member_handlers import MemberHandlers
from ottla.groups.handlers.offset_handlers import OffsetHandlers
from ottla.groups.handlers.txn_offset_handlers import TxnOffsetHandlers
from ottla.replication.control_handlers import ControlHandlers
from ottla.replication.epoch_handlers import EpochHandlers
from ottla.replication.marker_handlers import MarkerHandlers
from ottla.requests import Declaration
from ottla.transactions.admin_handlers import TransactionAdminHandlers
from ottla.transactions.producer_handlers import ProducerHandlers
from ottla.wire.apis import API_TABLE, ApiKey

PAGE = Path(__file__).resolve().parents[2] / "docs" / "skipped.md"
COLD = (
    MetadataHandlers,
    ClientHandlers,
    TopicHandlers,
    ConfigHandlers,
    LogDirHandlers,
    LogHandlers,
    EpochHandlers,
    MarkerHandlers,
    ControlHandlers,
    UpdateHandlers,
    ControllerHandlers,
    ReassignmentHandlers,
    MemberHandlers,
    OffsetHandlers,
    TxnOffsetHandlers,
    GroupAdminHandlers,
    ProducerHandlers,
    TransactionAdminHandlers,
)
HOT = ("Produce", "Fetch", "Heartbeat")


def declarations() -> dict[str, Declaration]:
    found = {}
    for owner in COLD:
        for member in vars(owner).values():
            declaration = getattr(member, "declaration", None)
            if isinstance(declaration, Declaration):
                found[API_TABLE[ApiKey(declaration.api_key)].name] = declaration
    return found


def rows(page: str, title: str) -> list[list[str]]:
    """Cells of the tables under the headings that contain `title`."""
    sections = [part for part in re.split(r"^## ", page, flags=re.MULTILINE) if title in part.partition("\n")[0]]
    lines = [line for part in sections for line in part.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if not row[0].startswith(("---", "API"))]


def test_every_api_is_served_or_explained():
    page = PAGE.read_text()
    skipped = [name for row in rows(page, "served") for name in row[0].split(", ")]
    served = [*HOT, *declarations()]
    assert sorted(skipped + served) == sorted(api.name for api in API_TABLE.values())


def test_versions_that_are_not_offered_are_explained():
    page = PAGE.read_text()
    explained = {row[0]: row[1] for row in rows(page, "Versions")}
    fewer = {}
    for name, declaration in declarations().items():
        api = API_TABLE[ApiKey(declaration.api_key)]
        if (declaration.min_version, declaration.max_version) != (api.min_version, api.max_version):
            fewer[name] = f"{declaration.min_version}-{declaration.max_version}"
    assert explained == fewer
