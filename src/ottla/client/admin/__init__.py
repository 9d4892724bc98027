"""Administration of clusters: topics, configurations, groups, log directories, partitions, transactions.

Zone: real. The names exported here are stable for users; the modules that define them may move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.lazy_imports import names_on_demand

if TYPE_CHECKING:
    from ottla.client.admin.admin import Admin
    from ottla.client.admin.groups import GroupAdmin
    from ottla.client.admin.transactions import TransactionAdmin

_HOMES: Final = {
    "ottla.client.admin.admin": "Admin",
    "ottla.client.admin.groups": "GroupAdmin",
    "ottla.client.admin.transactions": "TransactionAdmin",
}

__all__ = ["Admin", "GroupAdmin", "TransactionAdmin"]

__getattr__, __dir__ = names_on_demand(globals(), _HOMES)
