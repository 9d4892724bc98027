"""Admin calls about ACLs, users, quotas and tokens, with a scripted broker."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from tests.client.conftest import ScriptedBroker

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
)
from ottla.client import Cluster, MalformedReplyError, RefusedError, UnsupportedVersionError, UsageError
from ottla.client.admin import (
    AclAdmin,
    AnyName,
    DelegationToken,
    QuotaAdmin,
    QuotaEntity,
    QuotaFilter,
    ScramAdmin,
    ScramCredentialInfo,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
    TokenAdmin,
)
from ottla.client.aio import Admin as AsyncAdmin
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
    DescribeDelegationTokenResponse,
    DescribeUserScramCredentialsResponse,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenResponse,
)
from ottla.wire.schema import Message

READ = AclBinding(
    ResourcePattern(ResourceType.TOPIC, "orders"), AclEntry("User:ann", "*", Operation.READ, Permission.ALLOW)
)
PREFIX = AclBinding(
    ResourcePattern(ResourceType.GROUP, "g-", PatternType.PREFIXED),
    AclEntry("User:ann", "10.0.0.1", Operation.READ, Permission.DENY),
)


def answers(broker: ScriptedBroker, key: ApiKey, message: Message) -> None:
    broker.on[key] = lambda request: request.reply(message)


def asked(broker: ScriptedBroker, key: ApiKey) -> Any:
    return broker.asked(key)[-1].message()


# -- ACLs --------------------------------------------------------------------------------------------------------------


def described(*bindings: AclBinding) -> DescribeAclsResponse:
    made = DescribeAclsResponse
    return made(
        resources=[
            made.DescribeAclsResource(
                resource_type=resource.resource_type,
                resource_name=resource.name,
                pattern_type=resource.pattern_type,
                acls=[
                    made.AclDescription(
                        principal=entry.principal,
                        host=entry.host,
                        operation=entry.operation,
                        permission_type=entry.permission,
                    )
                ],
            )
            for resource, entry in bindings
        ]
    )


def test_acls_are_described(broker, cluster) -> None:
    answers(broker, ApiKey.DESCRIBE_ACLS, described(PREFIX, READ))
    selected = AclFilter(ResourceFilter(ResourceType.ANY, None, PatternType.ANY), EntryFilter(principal="User:ann"))
    assert AclAdmin(cluster).describe_acls(selected) == [READ, PREFIX]
    sent = asked(broker, ApiKey.DESCRIBE_ACLS)
    assert (sent.resource_type_filter, sent.resource_name_filter, sent.pattern_type_filter) == (1, None, 1)
    assert (sent.principal_filter, sent.host_filter, sent.operation, sent.permission_type) == ("User:ann", None, 1, 1)


def test_numbers_of_newer_brokers_are_unknown(broker, cluster) -> None:
    newer = described(READ)
    newer.resources[0].resource_type = 99
    newer.resources[0].acls[0].operation = 99
    answers(broker, ApiKey.DESCRIBE_ACLS, newer)
    (found,) = AclAdmin(cluster).describe_acls()
    assert (found.resource.resource_type, found.entry.operation) == (ResourceType.UNKNOWN, Operation.UNKNOWN)


def test_a_cluster_without_an_authorizer_is_named(broker, cluster) -> None:
    answers(broker, ApiKey.DESCRIBE_ACLS, DescribeAclsResponse(error_code=54, error_message="no Authorizer"))
    with pytest.raises(RefusedError, match=r"ACLs: SECURITY_DISABLED: no Authorizer\. Set authorizer\.class\.name"):
        AclAdmin(cluster).describe_acls()


def test_acls_are_created_or_refused_one_by_one(broker, cluster) -> None:
    result = CreateAclsResponse.AclCreationResult
    refused = result(error_code=42, error_message="Invalid host")
    answers(broker, ApiKey.CREATE_ACLS, CreateAclsResponse(results=[result(), refused]))
    results = AclAdmin(cluster).create_acls([READ, PREFIX, READ])
    assert results[READ] is None
    assert str(results[PREFIX]).startswith("ACL (Deny Read for User:ann from host 10.0.0.1 on Group:PREFIXED:g-)")
    first, second = asked(broker, ApiKey.CREATE_ACLS).creations
    assert (first.resource_type, first.resource_name, first.resource_pattern_type) == (2, "orders", 3)
    assert (second.principal, second.host, second.operation, second.permission_type) == ("User:ann", "10.0.0.1", 3, 2)


def test_deleted_acls_are_listed_by_filter(broker, cluster) -> None:
    made = DeleteAclsResponse
    match = made.DeleteAclsMatchingAcl(
        resource_type=2, resource_name="orders", principal="User:ann", host="*", operation=3, permission_type=3
    )
    results = [
        made.DeleteAclsFilterResult(matching_acls=[match]),
        made.DeleteAclsFilterResult(error_code=31),
        made.DeleteAclsFilterResult(),
    ]
    answers(broker, ApiKey.DELETE_ACLS, DeleteAclsResponse(filter_results=results))
    filters = [AclFilter(), AclFilter(ResourceFilter(ResourceType.GROUP)), AclFilter(ResourceFilter(name="x"))]
    deleted = AclAdmin(cluster).delete_acls(filters)
    assert deleted[filters[0]] == {READ: None}
    assert deleted[filters[1]].code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED  # type: ignore[union-attr]
    assert deleted[filters[2]] == {}


@pytest.mark.parametrize("key", [ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS])
def test_another_number_of_results_is_malformed(broker, cluster, key: ApiKey) -> None:
    answers(broker, ApiKey.CREATE_ACLS, CreateAclsResponse())
    answers(broker, ApiKey.DELETE_ACLS, DeleteAclsResponse())
    admin = AclAdmin(cluster)
    with pytest.raises(MalformedReplyError, match="0 results for 1 elements"):
        admin.create_acls([READ]) if key is ApiKey.CREATE_ACLS else admin.delete_acls([AclFilter()])


def test_old_brokers_get_only_literal_acls(broker, cluster) -> None:
    for key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS):
        broker.versions[key] = (0, 0)
    answers(broker, ApiKey.DESCRIBE_ACLS, described(READ))
    admin = AclAdmin(cluster)
    assert admin.describe_acls() == [READ]
    matching = AclFilter(ResourceFilter(ResourceType.TOPIC, "orders", PatternType.MATCH))
    for call in (
        lambda: admin.describe_acls(matching),
        lambda: admin.delete_acls([matching]),
        lambda: admin.create_acls([PREFIX]),
    ):
        with pytest.raises(UnsupportedVersionError, match="only ACLs of literal names"):
            call()


# -- users -------------------------------------------------------------------------------------------------------------


def altered(*results: tuple[str, int]) -> AlterUserScramCredentialsResponse:
    made = AlterUserScramCredentialsResponse
    return made(results=[made.AlterUserScramCredentialsResult(user=user, error_code=code) for user, code in results])


def test_passwords_are_salted_here(broker, cluster) -> None:
    answers(broker, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, altered(("bob", 91), ("ann", 0)))
    changes = [
        ScramUpsertion("ann", ScramMechanism.SCRAM_SHA_256, "secret-1", 4096, b"salt"),
        ScramUpsertion("ann", ScramMechanism.SCRAM_SHA_512, "secret-1"),
        ScramDeletion("bob", ScramMechanism.SCRAM_SHA_256),
    ]
    results = ScramAdmin(cluster).alter_user_scram_credentials(changes)
    assert list(results) == ["ann", "bob"]
    assert results["ann"] is None
    assert results["bob"].code is ErrorCode.RESOURCE_NOT_FOUND  # type: ignore[union-attr]
    sent = asked(broker, ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    assert [(each.name, each.mechanism) for each in sent.deletions] == [("bob", 1)]
    given, random = sent.upsertions
    assert given.salted_password == hashlib.pbkdf2_hmac("sha256", b"secret-1", b"salt", 4096)
    assert random.salted_password == hashlib.pbkdf2_hmac("sha512", b"secret-1", bytes(random.salt), 4096)
    assert len(random.salt) >= 16
    assert not any(b"secret-1" in request.frame for request in broker.requests)
    assert "secret-1" not in repr(changes)


def test_credentials_go_to_the_new_controller(broker, cluster) -> None:
    left = [altered(("ann", 41)), altered(("ann", 0))]
    broker.on[ApiKey.ALTER_USER_SCRAM_CREDENTIALS] = lambda request: request.reply(left.pop(0))
    change = ScramUpsertion("ann", ScramMechanism.SCRAM_SHA_256, "secret-1")
    assert ScramAdmin(cluster).alter_user_scram_credentials([change]) == {"ann": None}
    first, second = broker.asked(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    assert first.message() == second.message()


def test_a_user_without_a_result_is_malformed(broker, cluster) -> None:
    answers(broker, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, altered(("eve", 0)))
    with pytest.raises(MalformedReplyError, match="no result for user ann"):
        ScramAdmin(cluster).alter_user_scram_credentials([ScramDeletion("ann", ScramMechanism.SCRAM_SHA_256)])


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"password": ""}, "is empty"),
        ({"iterations": 4095}, "4095 iterations"),
        ({"iterations": 1_000_000}, "1000000 iterations"),
        ({"mechanism": ScramMechanism.UNKNOWN}, "needs a mechanism"),
    ],
)
def test_impossible_credentials_are_refused_here(changed: dict[str, Any], text: str) -> None:
    fields = {"user": "ann", "mechanism": ScramMechanism.SCRAM_SHA_256, "password": "secret-1"} | changed
    with pytest.raises(UsageError, match=text) as caught:
        ScramUpsertion(**fields)
    assert "secret-1" not in str(caught.value)


def test_a_password_that_is_not_utf_8_is_not_shown(cluster: Cluster) -> None:
    change = ScramUpsertion("ann", ScramMechanism.SCRAM_SHA_256, "secret-\udc80")
    with pytest.raises(UsageError, match="not text in UTF-8") as caught:
        ScramAdmin(cluster).alter_user_scram_credentials([change])
    assert caught.value.__suppress_context__
    assert "secret" not in str(caught.value)


def test_users_are_described(broker, cluster) -> None:
    made = DescribeUserScramCredentialsResponse
    info = made.CredentialInfo
    results = [
        made.DescribeUserScramCredentialsResult(
            user="bob", credential_infos=[info(mechanism=2, iterations=8192), info(mechanism=1, iterations=4096)]
        ),
        made.DescribeUserScramCredentialsResult(user="ann", error_code=91, error_message="none"),
    ]
    answers(broker, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, made(results=results))
    admin = ScramAdmin(cluster)
    found = admin.describe_user_scram_credentials(["ann", "bob"])
    assert list(found) == ["ann", "bob"]
    assert found["bob"] == [
        ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096),
        ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192),
    ]
    assert found["ann"].code is ErrorCode.RESOURCE_NOT_FOUND  # type: ignore[union-attr]
    assert admin.describe_user_scram_credentials([]) == {}
    assert len(broker.asked(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)) == 1
    admin.describe_user_scram_credentials()
    assert asked(broker, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS).users is None


# -- quotas ------------------------------------------------------------------------------------------------------------

BOTH = QuotaEntity(user="ann", client_id=None)
ADDRESS = QuotaEntity(ip="10.0.0.1")


def parts(kind: Any, entity: QuotaEntity) -> list[Any]:
    names = {"user": entity.user, "client-id": entity.client_id, "ip": entity.ip}
    return [kind(entity_type=each, entity_name=name) for each, name in names.items() if name != ""]


def test_quotas_are_described(broker, cluster) -> None:
    made = DescribeClientQuotasResponse
    entries = [
        made.EntryData(
            entity=parts(made.EntityData, BOTH), values=[made.ValueData(key="producer_byte_rate", value=1e6)]
        )
    ]
    answers(broker, ApiKey.DESCRIBE_CLIENT_QUOTAS, made(entries=entries))
    admin = QuotaAdmin(cluster)
    assert admin.describe_client_quotas() == {BOTH: {"producer_byte_rate": 1e6}}
    assert str(BOTH) == "user ann, client-id (default)"
    admin.describe_client_quotas(QuotaFilter(user=None, client_id=AnyName.ANY, ip="::1", strict=True))
    sent = asked(broker, ApiKey.DESCRIBE_CLIENT_QUOTAS)
    assert [(each.entity_type, each.match_type, each.match) for each in sent.components] == [
        ("user", 1, None),
        ("client-id", 2, None),
        ("ip", 0, "::1"),
    ]
    assert sent.strict


def test_a_failed_filter_is_raised(broker, cluster) -> None:
    answer = DescribeClientQuotasResponse(error_code=42, error_message="Invalid", entries=None)
    answers(broker, ApiKey.DESCRIBE_CLIENT_QUOTAS, answer)
    with pytest.raises(RefusedError, match="quotas: INVALID_REQUEST: Invalid"):
        QuotaAdmin(cluster).describe_client_quotas()


def test_an_unknown_kind_of_entity_is_malformed(broker, cluster) -> None:
    made = DescribeClientQuotasResponse
    entry = made.EntryData(entity=[made.EntityData(entity_type="planet", entity_name="mars")])
    answers(broker, ApiKey.DESCRIBE_CLIENT_QUOTAS, made(entries=[entry]))
    with pytest.raises(MalformedReplyError, match="planet"):
        QuotaAdmin(cluster).describe_client_quotas()


def test_quotas_are_set_and_removed_one_by_one(broker, cluster) -> None:
    made = AlterClientQuotasResponse
    entries = [
        made.EntryData(entity=parts(made.EntityData, ADDRESS), error_code=42, error_message="no"),
        made.EntryData(entity=parts(made.EntityData, BOTH)),
    ]
    answers(broker, ApiKey.ALTER_CLIENT_QUOTAS, made(entries=entries))
    admin = QuotaAdmin(cluster)
    changes = {BOTH: {"producer_byte_rate": 1024, "request_percentage": None}, ADDRESS: {"unknown": 1}}
    results = admin.alter_client_quotas(changes, validate_only=True)
    assert list(results) == [BOTH, ADDRESS]
    assert results[BOTH] is None
    assert results[ADDRESS].code is ErrorCode.INVALID_REQUEST  # type: ignore[union-attr]
    sent = asked(broker, ApiKey.ALTER_CLIENT_QUOTAS)
    assert sent.validate_only
    assert [(op.key, op.value, op.remove) for op in sent.entries[0].ops] == [
        ("producer_byte_rate", 1024.0, False),
        ("request_percentage", 0.0, True),
    ]
    assert [(each.entity_type, each.entity_name) for each in sent.entries[0].entity] == [
        ("user", "ann"),
        ("client-id", None),
    ]
    with pytest.raises(MalformedReplyError, match="no result for user eve"):
        admin.alter_client_quotas({QuotaEntity(user="eve"): {}})
    with pytest.raises(UsageError, match="needs a user"):
        admin.alter_client_quotas({QuotaEntity(): {}})


# -- tokens ------------------------------------------------------------------------------------------------------------

MADE = CreateDelegationTokenResponse(
    principal_type="User",
    principal_name="ann",
    token_requester_principal_type="User",
    token_requester_principal_name="root",
    issue_timestamp_ms=1,
    expiry_timestamp_ms=2,
    max_timestamp_ms=3,
    token_id="id-1",
    hmac=b"\x01\xff secret",
)


def test_a_token_is_created(broker, cluster) -> None:
    answers(broker, ApiKey.CREATE_DELEGATION_TOKEN, MADE)
    admin = TokenAdmin(cluster)
    token = admin.create_delegation_token(["User:bob"], max_lifetime_ms=1000, owner="User:ann")
    assert token == DelegationToken("id-1", b"\x01\xff secret", "User:ann", "User:root", 1, 2, 3, ("User:bob",))
    assert token.password == "Af8gc2VjcmV0"
    assert "secret" not in repr(token)
    sent = asked(broker, ApiKey.CREATE_DELEGATION_TOKEN)
    assert (sent.owner_principal_type, sent.owner_principal_name, sent.max_lifetime_ms) == ("User", "ann", 1000)
    assert [(each.principal_type, each.principal_name) for each in sent.renewers] == [("User", "bob")]
    with pytest.raises(UsageError, match="'bob' is not a principal"):
        admin.create_delegation_token(["bob"])


def test_old_brokers_make_tokens_only_for_the_caller(broker, cluster) -> None:
    broker.versions[ApiKey.CREATE_DELEGATION_TOKEN] = (1, 2)
    answers(broker, ApiKey.CREATE_DELEGATION_TOKEN, MADE)
    admin = TokenAdmin(cluster)
    assert admin.create_delegation_token().requester == ""
    with pytest.raises(UnsupportedVersionError, match="only for the principal that asks"):
        admin.create_delegation_token(owner="User:ann")


def test_tokens_are_renewed_expired_and_described(broker, cluster) -> None:
    answers(broker, ApiKey.RENEW_DELEGATION_TOKEN, RenewDelegationTokenResponse(expiry_timestamp_ms=5))
    answers(broker, ApiKey.EXPIRE_DELEGATION_TOKEN, ExpireDelegationTokenResponse(error_code=62))
    described = DescribeDelegationTokenResponse
    row = described.DescribedDelegationToken(
        principal_type="User",
        principal_name="ann",
        token_id="id-1",
        hmac=b"h",
        renewers=[described.DescribedDelegationTokenRenewer(principal_type="User", principal_name="bob")],
    )
    answers(broker, ApiKey.DESCRIBE_DELEGATION_TOKEN, described(tokens=[row]))
    admin = TokenAdmin(cluster)
    assert admin.renew_delegation_token(b"h", period_ms=9) == 5
    sent = asked(broker, ApiKey.RENEW_DELEGATION_TOKEN)
    assert (bytes(sent.hmac), sent.renew_period_ms) == (b"h", 9)
    with pytest.raises(RefusedError, match="DELEGATION_TOKEN_NOT_FOUND"):
        admin.expire_delegation_token(b"h")
    assert asked(broker, ApiKey.EXPIRE_DELEGATION_TOKEN).expiry_time_period_ms == -1
    (token,) = admin.describe_delegation_tokens(["User:ann"])
    assert (token.owner, token.requester, token.renewers, token.hmac) == ("User:ann", "", ("User:bob",), b"h")
    assert asked(broker, ApiKey.DESCRIBE_DELEGATION_TOKEN).owners[0].principal_name == "ann"
    admin.describe_delegation_tokens()
    assert asked(broker, ApiKey.DESCRIBE_DELEGATION_TOKEN).owners is None


def test_asyncio_programs_have_the_same_calls(broker) -> None:
    answers(broker, ApiKey.DESCRIBE_ACLS, described(READ))
    answers(broker, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, altered(("ann", 0)))
    answers(broker, ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasResponse())
    answers(broker, ApiKey.CREATE_DELEGATION_TOKEN, MADE)

    async def ask() -> tuple[Any, ...]:
        async with AsyncAdmin({"bootstrap.servers": broker.bootstrap}) as admin:
            change = ScramUpsertion("ann", ScramMechanism.SCRAM_SHA_256, "secret-1")
            return (
                await admin.describe_acls(),
                await admin.alter_user_scram_credentials([change]),
                await admin.describe_client_quotas(),
                (await admin.create_delegation_token(max_lifetime_ms=5)).token_id,
            )

    assert asyncio.run(ask()) == ([READ], {"ann": None}, {}, "id-1")
