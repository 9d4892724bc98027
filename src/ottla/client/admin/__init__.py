"""Administration of clusters: topics, configurations, groups, share groups, log directories, partitions, transactions,
ACLs, users, quotas, delegation tokens, the quorum of controllers.

Zone: real. The names exported here are stable for users; the modules that define them may move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.lazy_imports import names_on_demand

if TYPE_CHECKING:
    from ottla.client.admin.acls import AclAdmin
    from ottla.client.admin.admin import Admin
    from ottla.client.admin.groups import GroupAdmin, MemberIdentity
    from ottla.client.admin.quorum import QuorumAdmin
    from ottla.client.admin.quotas import AnyName, QuotaAdmin, QuotaEntity, QuotaFilter
    from ottla.client.admin.scram import (
        ScramAdmin,
        ScramCredentialInfo,
        ScramDeletion,
        ScramMechanism,
        ScramUpsertion,
    )
    from ottla.client.admin.share_groups import ShareGroupAdmin
    from ottla.client.admin.tokens import DelegationToken, TokenAdmin
    from ottla.client.admin.transactions import TransactionAdmin

_HOMES: Final = {
    "ottla.client.admin.acls": "AclAdmin",
    "ottla.client.admin.admin": "Admin",
    "ottla.client.admin.groups": "GroupAdmin MemberIdentity",
    "ottla.client.admin.quorum": "QuorumAdmin",
    "ottla.client.admin.quotas": "AnyName QuotaAdmin QuotaEntity QuotaFilter",
    "ottla.client.admin.scram": "ScramAdmin ScramCredentialInfo ScramDeletion ScramMechanism ScramUpsertion",
    "ottla.client.admin.share_groups": "ShareGroupAdmin",
    "ottla.client.admin.tokens": "DelegationToken TokenAdmin",
    "ottla.client.admin.transactions": "TransactionAdmin",
}

__all__ = [
    "AclAdmin",
    "Admin",
    "AnyName",
    "DelegationToken",
    "GroupAdmin",
    "MemberIdentity",
    "QuorumAdmin",
    "QuotaAdmin",
    "QuotaEntity",
    "QuotaFilter",
    "ScramAdmin",
    "ScramCredentialInfo",
    "ScramDeletion",
    "ScramMechanism",
    "ScramUpsertion",
    "ShareGroupAdmin",
    "TokenAdmin",
    "TransactionAdmin",
]

__getattr__, __dir__ = names_on_demand(globals(), _HOMES)
