"""A cluster of one broker with ACLs, users, quotas and tokens, in memory, for the commands about them.

Zone: real. It answers with Kafka's errors and checks nobody's rights; Apache Kafka itself is in `kafka_test`.
"""

from __future__ import annotations

from typing import Any

from tests.client.conftest import Request, ScriptedBroker

from ottla.acls import (
    AclBinding,
    AclEntry,
    AclFilter,
    EntryFilter,
    Operation,
    PatternType,
    Permission,
    ResourceFilter,
    ResourcePattern,
    ResourceType,
    fault_of_binding,
)
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterClientQuotasResponse,
    AlterUserScramCredentialsResponse,
    CreateAclsResponse,
    CreateDelegationTokenResponse,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeClientQuotasResponse,
    DescribeConfigsResponse,
    DescribeDelegationTokenResponse,
    DescribeUserScramCredentialsResponse,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenResponse,
)
from ottla.wire.schema import Message

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


class FakeCluster:
    """The state, and the answers of its broker."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.acls: set[AclBinding] = set()
        self.users: dict[str, dict[int, Any]] = {}
        self.quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, str | None] = {}
        for key, handle in {
            ApiKey.DESCRIBE_ACLS: self.describe_acls,
            ApiKey.CREATE_ACLS: self.create_acls,
            ApiKey.DELETE_ACLS: self.delete_acls,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self.describe_users,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self.alter_users,
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self.describe_quotas,
            ApiKey.ALTER_CLIENT_QUOTAS: self.alter_quotas,
            ApiKey.CREATE_DELEGATION_TOKEN: self.create_token,
            ApiKey.DESCRIBE_DELEGATION_TOKEN: self.describe_tokens,
            ApiKey.RENEW_DELEGATION_TOKEN: self.renew_token,
            ApiKey.EXPIRE_DELEGATION_TOKEN: self.expire_token,
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
        }.items():
            broker.on[key] = self.answer_with(handle)

    def answer_with(self, handle: Any) -> Any:
        def answer(request: Request) -> bytes:
            made: Message = handle(request.message())
            return request.reply(made)

        return answer

    # -- ACLs ----------------------------------------------------------------------------------------------------------

    def describe_acls(self, request: Any) -> Message:
        made = DescribeAclsResponse
        selected = _filter_of(request)
        return made(
            resources=[
                made.DescribeAclsResource(
                    resource_type=resource.resource_type,
                    resource_name=resource.name,
                    pattern_type=resource.pattern_type,
                    acls=[made.AclDescription(**_entry_fields(entry))],
                )
                for resource, entry in self.acls
                if selected.matches_binding(AclBinding(resource, entry))
            ]
        )

    def create_acls(self, request: Any) -> Message:
        results = []
        for each in request.creations:
            resource = ResourcePattern(
                ResourceType(each.resource_type), each.resource_name, PatternType(each.resource_pattern_type)
            )
            entry = AclEntry(each.principal, each.host, Operation(each.operation), Permission(each.permission_type))
            fault = fault_of_binding(AclBinding(resource, entry))
            if not fault:
                self.acls.add(AclBinding(resource, entry))
            results.append(
                CreateAclsResponse.AclCreationResult(error_code=42 if fault else 0, error_message=fault or None)
            )
        return CreateAclsResponse(results=results)

    def delete_acls(self, request: Any) -> Message:
        made = DeleteAclsResponse
        results = []
        for each in request.filters:
            found = [binding for binding in self.acls if _filter_of(each).matches_binding(binding)]
            self.acls.difference_update(found)
            results.append(
                made.DeleteAclsFilterResult(
                    matching_acls=[
                        made.DeleteAclsMatchingAcl(
                            resource_type=resource.resource_type,
                            resource_name=resource.name,
                            pattern_type=resource.pattern_type,
                            **_entry_fields(entry),
                        )
                        for resource, entry in found
                    ]
                )
            )
        return made(filter_results=results)

    # -- users ---------------------------------------------------------------------------------------------------------

    def describe_users(self, request: Any) -> Message:
        made = DescribeUserScramCredentialsResponse
        wanted = self.users if request.users is None else [each.name for each in request.users]
        return made(
            results=[
                made.DescribeUserScramCredentialsResult(
                    user=name,
                    error_code=0 if name in self.users else ErrorCode.RESOURCE_NOT_FOUND,
                    credential_infos=[
                        made.CredentialInfo(mechanism=kind, iterations=each.iterations)
                        for kind, each in self.users.get(name, {}).items()
                    ],
                )
                for name in wanted
            ]
        )

    def alter_users(self, request: Any) -> Message:
        made = AlterUserScramCredentialsResponse
        users = [each.name for each in [*request.upsertions, *request.deletions]]
        assert len(set(users)) == len(users), "DUPLICATE_RESOURCE in Apache Kafka"
        for each in request.upsertions:
            self.users.setdefault(each.name, {})[each.mechanism] = each
        for each in request.deletions:
            del self.users[each.name][each.mechanism]
            if not self.users[each.name]:
                del self.users[each.name]
        return made(results=[made.AlterUserScramCredentialsResult(user=name) for name in users])

    # -- quotas --------------------------------------------------------------------------------------------------------

    def describe_quotas(self, request: Any) -> Message:
        made = DescribeClientQuotasResponse
        wanted = {each.entity_type: each for each in request.components}

        def selected(entity: dict[str, str | None]) -> bool:
            if request.strict and set(entity) != set(wanted):
                return False
            return all(
                kind in entity and (each.match_type == 2 or entity[kind] == each.match) for kind, each in wanted.items()
            )

        return made(
            entries=[
                made.EntryData(
                    entity=[made.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    values=[made.ValueData(key=key, value=value) for key, value in values.items()],
                )
                for entity, values in self.quotas.items()
                if selected(dict(entity))
            ]
        )

    def alter_quotas(self, request: Any) -> Message:
        made = AlterClientQuotasResponse
        entries = []
        for each in request.entries:
            entity = tuple((part.entity_type, part.entity_name) for part in each.entity)
            wrong = [op.key for op in each.ops if not op.remove and not op.value > 0]
            if not wrong and not request.validate_only:
                self._apply_quotas(entity, each.ops)
            entries.append(
                made.EntryData(
                    entity=[made.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    error_code=42 if wrong else 0,
                    error_message=f"Quota {wrong[0]} must be greater than 0" if wrong else None,
                )
            )
        return made(entries=entries)

    def _apply_quotas(self, entity: Any, ops: Any) -> None:
        own = self.quotas.setdefault(entity, {})
        for op in ops:
            if op.remove:
                own.pop(op.key, None)
            else:
                own[op.key] = op.value
        if not own:
            del self.quotas[entity]

    # -- tokens --------------------------------------------------------------------------------------------------------

    def create_token(self, request: Any) -> Message:
        name = f"token-{len(self.tokens) + 1}"
        made = {
            "principal_type": "User",
            "principal_name": request.owner_principal_name or "admin",
            "token_requester_principal_type": "User",
            "token_requester_principal_name": "admin",
            "token_id": name,
            "hmac": f"hmac of {name}".encode(),
        }
        self.tokens[name] = {**made, "expiry": NOW_MS + HOUR_MS, "renewers": list(request.renewers)}
        return CreateDelegationTokenResponse(
            **made,
            issue_timestamp_ms=NOW_MS,
            expiry_timestamp_ms=NOW_MS + HOUR_MS,
            max_timestamp_ms=NOW_MS + request.max_lifetime_ms,
        )

    def describe_tokens(self, request: Any) -> Message:
        made = DescribeDelegationTokenResponse
        owners = None if request.owners is None else {each.principal_name for each in request.owners}
        renewer = made.DescribedDelegationTokenRenewer
        return made(
            tokens=[
                made.DescribedDelegationToken(
                    **{key: value for key, value in each.items() if key not in ("expiry", "renewers")},
                    issue_timestamp=NOW_MS,
                    expiry_timestamp=each["expiry"],
                    max_timestamp=NOW_MS + 7 * 24 * HOUR_MS,
                    renewers=[
                        renewer(principal_type=r.principal_type, principal_name=r.principal_name)
                        for r in each["renewers"]
                    ],
                )
                for each in self.tokens.values()
                if owners is None or each["principal_name"] in owners
            ]
        )

    def renew_token(self, request: Any) -> Message:
        name = self._token_of(request)
        self.tokens[name]["expiry"] = NOW_MS + request.renew_period_ms
        return RenewDelegationTokenResponse(expiry_timestamp_ms=self.tokens[name]["expiry"])

    def expire_token(self, request: Any) -> Message:
        self.tokens.pop(self._token_of(request))
        return ExpireDelegationTokenResponse(expiry_timestamp_ms=NOW_MS)

    def _token_of(self, request: Any) -> str:
        return next(name for name, each in self.tokens.items() if each["hmac"] == bytes(request.hmac))

    # -- settings ------------------------------------------------------------------------------------------------------

    def describe_configs(self, request: Any) -> Message:
        made = DescribeConfigsResponse
        configs = [
            made.DescribeConfigsResourceResult(name=n, value=v, config_source=4) for n, v in self.settings.items()
        ]
        (asked,) = request.resources
        result = made.DescribeConfigsResult(
            resource_type=asked.resource_type, resource_name=asked.resource_name, configs=configs
        )
        return made(results=[result])


def _filter_of(request: Any) -> AclFilter:
    return AclFilter(
        ResourceFilter(
            ResourceType(request.resource_type_filter),
            request.resource_name_filter,
            PatternType(request.pattern_type_filter),
        ),
        EntryFilter(
            request.principal_filter,
            request.host_filter,
            Operation(request.operation),
            Permission(request.permission_type),
        ),
    )


def _entry_fields(entry: AclEntry) -> dict[str, Any]:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }
