"""The decision tables of Apache Kafka's authorizer tests (AuthorizerTest, BaseAuthorizerTest, StandardAuthorizerTest).

Zone: pure. Scenarios and expectations are Kafka's, the code is not. An ACL is written as Kafka's tools print it:
"allow ann READ from h1". `+` at the end of a resource's name: a prefix.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.steps import count_steps

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
    fault_of_filter,
    normalize_host,
)
from ottla.config.broker import BrokerConfig
from ottla.config.broker_authorizer import split_principals
from ottla.config.rows import ConfigError
from ottla.security.authorization.authorizer import Authorizer
from ottla.security.authorization.decision_cache import ALL_MAX, NAME_MAX, RESOURCES_MAX, RESOURCES_MIN, DecisionCache

H1, H2 = "192.168.1.1", "192.168.1.2"
EVERY = [operation for operation in Operation if operation > Operation.ALL]
RESOURCE = "topic foo-1"
TOPIC_ACLS = [
    "allow ann READ from 192.168.1.1",
    "allow ann READ from 192.168.1.2",
    "deny ann READ from 192.168.1.1",
    "allow ann WRITE from 192.168.1.1",
    "allow ann DESCRIBE from *",
    "allow rob READ from *",
    "allow batman WRITE from *",
]


def resource_of(text: str) -> ResourcePattern:
    kind, _, name = text.partition(" ")
    pattern = PatternType.PREFIXED if name.endswith("+") else PatternType.LITERAL
    return ResourcePattern(ResourceType.from_text(kind), name.removesuffix("+"), pattern)


def entry_of(text: str) -> AclEntry:
    permission, user, operation, _, host = text.split()
    return AclEntry(f"User:{user}", host, Operation.from_text(operation), Permission.from_text(permission))


def authorizer_of(acls: dict[str, list[str]], **settings: Any) -> Authorizer:
    authorizer = Authorizer(**settings)
    authorizer.mark_loaded()
    for resource, entries in acls.items():
        authorizer.replace_acls(resource_of(resource), map(entry_of, entries))
    return authorizer


def may(authorizer: Authorizer, user: str, host: str, operation: str, resource: str = RESOURCE) -> bool:
    pattern = resource_of(resource)
    return authorizer.is_allowed(f"User:{user}", host, Operation[operation], (pattern.resource_type, pattern.name))


@pytest.mark.parametrize(
    ("user", "host", "operation", "expected"),
    [
        ("ann", H2, "READ", True),
        ("ann", H1, "READ", False),
        ("ann", H1, "WRITE", True),
        ("ann", H2, "WRITE", False),
        ("ann", H1, "DESCRIBE", True),
        ("ann", H2, "DESCRIBE", True),
        ("ann", H1, "ALTER", False),
        ("ann", H2, "ALTER", False),
        ("rob", H1, "DESCRIBE", True),
        ("batman", H1, "DESCRIBE", True),
        ("rob", H1, "READ", True),
        ("batman", H1, "WRITE", True),
        ("eve", H1, "DESCRIBE", False),
    ],
)
def test_acls_of_a_topic(user: str, host: str, operation: str, expected: bool) -> None:
    assert may(authorizer_of({RESOURCE: TOPIC_ACLS}), user, host, operation) is expected


@pytest.mark.parametrize(
    ("acls", "operation", "expected"),
    [
        # A denial wins over a permission, whichever of them is more general.
        ({RESOURCE: ["allow * ALL from *", "deny ann ALL from 192.168.1.1"]}, "READ", False),
        ({RESOURCE: ["allow * ALL from *"]}, "READ", True),
        # The literal * is every name; a denial there wins over the name itself.
        ({"topic *": ["allow ann READ from 192.168.1.1"]}, "READ", True),
        ({"topic *": ["deny ann WRITE from 192.168.1.1"], RESOURCE: ["allow ann WRITE from *"]}, "WRITE", False),
        # Prefixes, of other names and of this one.
        ({"topic foo+": ["allow ann READ from *"]}, "READ", True),
        ({"topic foo-1+": ["allow ann READ from *"]}, "READ", True),
        ({"topic f+": ["allow ann READ from *"]}, "READ", True),
        ({"topic foo-11+": ["allow ann READ from *"]}, "READ", False),
        ({"topic foo": ["allow ann READ from *"]}, "READ", False),
        ({"topic *+": ["allow ann READ from *"]}, "READ", False),
        ({"group foo-1": ["allow ann READ from *"]}, "READ", False),
        ({"topic foo-1": ["allow ann READ from *"], "topic f+": ["deny ann READ from *"]}, "READ", False),
        ({"topic a_other": ["deny ann READ from *"], "topic foo+": ["allow ann READ from *"]}, "READ", True),
        # Without ACLs: closed.
        ({}, "READ", False),
        ({"topic other": ["allow ann READ from *"]}, "READ", False),
    ],
)
def test_patterns(acls: dict[str, list[str]], operation: str, expected: bool) -> None:
    assert may(authorizer_of(acls), "ann", H1, operation) is expected


@pytest.mark.parametrize(
    ("allowed", "implied"),
    [
        ("ALL", EVERY),
        ("READ", [Operation.DESCRIBE]),
        ("WRITE", [Operation.DESCRIBE]),
        ("DELETE", [Operation.DESCRIBE]),
        ("ALTER", [Operation.DESCRIBE]),
        ("ALTER_CONFIGS", [Operation.DESCRIBE_CONFIGS]),
        ("DESCRIBE", []),
        ("DESCRIBE_CONFIGS", []),
        ("CREATE", []),
        ("CLUSTER_ACTION", []),
    ],
)
def test_operations_that_are_implied(allowed: str, implied: list[Operation]) -> None:
    authorizer = authorizer_of({"cluster kafka-cluster": [f"allow ann {allowed} from *"]})
    for operation in EVERY:
        expected = operation in implied or operation.name == allowed
        assert may(authorizer, "ann", H1, operation.name, "cluster kafka-cluster") is expected, operation


@pytest.mark.parametrize("denied", ["ALL", "READ", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"])
def test_a_denial_implies_none_but_all(denied: str) -> None:
    acls = [f"deny ann {denied} from *", "allow ann ALL from *"]
    authorizer = authorizer_of({"cluster kafka-cluster": acls})
    for operation in EVERY:
        expected = denied not in ("ALL", operation.name)
        assert may(authorizer, "ann", H1, operation.name, "cluster kafka-cluster") is expected, operation


def test_super_users_pass_every_denial() -> None:
    users = split_principals(" User:boss ; ;User:CN=a,O=b")
    assert users == ("User:boss", "User:CN=a,O=b")
    authorizer = authorizer_of({RESOURCE: ["deny * ALL from *"]}, super_users=users)
    assert may(authorizer, "boss", H1, "READ")
    assert not may(authorizer, "ann", H1, "READ")
    assert not authorizer.is_allowed("Group:boss", H1, Operation.READ, (ResourceType.TOPIC, "foo-1"))
    assert authorizer.is_allowed_anywhere("User:boss", H1, Operation.WRITE, ResourceType.TOPIC)
    with pytest.raises(ConfigError, match="type:name"):
        BrokerConfig.from_properties({"super.users": "User:boss;eve"})


def test_everyone_is_allowed_where_no_acl_is() -> None:
    authorizer = authorizer_of({"topic foo+": ["allow rob READ from *"]}, allow_without_acl=True)
    assert may(authorizer, "ann", H1, "READ", "topic bar")
    assert not may(authorizer, "ann", H1, "READ", "topic foo-1"), "an ACL for another principal closes the resource"
    assert authorizer.is_allowed_anywhere("User:ann", H1, Operation.READ, ResourceType.TOPIC)


def test_a_resource_with_an_empty_name() -> None:
    authorizer = authorizer_of({})
    assert not authorizer.is_allowed("User:ann", H1, Operation.READ, (ResourceType.GROUP, ""))
    authorizer.replace_acls(resource_of("group *"), [entry_of("allow ann READ from *")])
    assert authorizer.is_allowed("User:ann", H1, Operation.READ, (ResourceType.GROUP, ""))


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        (["sb1 allow"], True),
        (["sb1+ allow"], True),
        (["* allow"], True),
        (["* deny", "* allow"], False),
        (["sb1 deny", "sb1 allow"], False),
        (["sb1 deny", "sb1 allow", "sb2 allow"], True),
        (["sb+ deny", "sb1 allow"], False),
        (["sb1 deny", "sb+ allow"], True),
        (["s+ deny", "sb+ allow", "sb1 allow"], False),
        (["sb+ deny", "s+ allow"], True),
        (["sb+ deny", "sb+ allow"], False),
        (["sb+ deny", "* allow"], True),
        (["* deny", "sb+ allow", "sb1 allow"], False),
    ],
)
@pytest.mark.parametrize("entry", ["ann READ from *", "* READ from *", "ann ALL from *", f"ann READ from {H1}"])
def test_any_resource_of_a_type(acls: list[str], expected: bool, entry: str) -> None:
    by_resource: dict[str, list[str]] = {}
    for text in acls:
        name, permission = text.split()
        by_resource.setdefault(f"topic {name}", []).append(f"{permission} {entry}")
    authorizer = authorizer_of(by_resource)
    assert authorizer.is_allowed_anywhere("User:ann", H1, Operation.READ, ResourceType.TOPIC) is expected
    assert not authorizer.is_allowed_anywhere("User:ann", H1, Operation.READ, ResourceType.GROUP)


def test_unrelated_denials_do_not_close_a_type() -> None:
    denials = ["deny rob READ from *", f"deny ann READ from {H2}", "deny ann WRITE from *"]
    authorizer = authorizer_of({"topic *": denials, "topic sb1": ["allow ann READ from *"], "group *": denials})
    assert authorizer.is_allowed_anywhere("User:ann", H1, Operation.READ, ResourceType.TOPIC)


def test_filters_of_the_admin_requests() -> None:
    acls = {
        RESOURCE: ["allow ann READ from *", "allow ann WRITE from *"],
        "topic foo+": ["deny ann READ from *"],
        "topic *": ["allow * DESCRIBE from *"],
        "group foo-1": ["allow ann READ from *"],
    }
    index = authorizer_of(acls).acls
    topic = ResourceType.TOPIC

    def select(**wanted: Any) -> set[AclBinding]:
        return set(index.select_acls(AclFilter(**wanted)))

    assert len(select()) == 5
    assert select(resource=ResourceFilter(topic, "foo-1", PatternType.LITERAL)) == {
        AclBinding(resource_of(RESOURCE), entry_of(text)) for text in acls[RESOURCE]
    }
    assert len(select(resource=ResourceFilter(topic, "foo-1", PatternType.MATCH))) == 4
    assert len(select(resource=ResourceFilter(ResourceType.ANY, "foo-1", PatternType.MATCH))) == 5
    assert len(select(resource=ResourceFilter(topic, "foo", PatternType.ANY))) == 1
    assert select(resource=ResourceFilter(topic, "fo", PatternType.ANY)) == set()
    assert len(select(resource=ResourceFilter(topic, "*", PatternType.LITERAL))) == 1
    assert len(select(entry=EntryFilter("User:ann", None, Operation.READ))) == 3
    assert len(select(entry=EntryFilter("User:*"))) == 1, "a wildcard in a filter is text"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"resource_type": ResourceType(99)}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"name": ""}, "Resource name should not be empty"),
        ({"resource_type": ResourceType.CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"operation": Operation(77)}, "Invalid operation UNKNOWN"),
        ({"operation": Operation.ANY}, "Invalid operation ANY"),
        ({"permission": Permission.ANY}, "Invalid permissionType ANY"),
        ({"principal": "ann"}, "the principal is not of the form type:name"),
        ({"host": ""}, "the host is empty; * means every host"),
    ],
)
def test_acls_that_cannot_be_created(change: dict[str, Any], fault: str) -> None:
    at = {name: value for name, value in change.items() if name in ResourcePattern._fields}
    entry = {name: value for name, value in change.items() if name in AclEntry._fields}
    binding = AclBinding(resource_of(RESOURCE)._replace(**at), entry_of("allow ann READ from *")._replace(**entry))
    assert fault_of_binding(binding) == fault


def test_filters_with_unknown_numbers() -> None:
    assert fault_of_filter(AclFilter()) == ""
    assert fault_of_filter(AclFilter(ResourceFilter(ResourceType(50)))) == "Unknown patternFilter."
    assert fault_of_filter(AclFilter(ResourceFilter(pattern_type=PatternType(50)))) == "Unknown patternFilter."
    assert fault_of_filter(AclFilter(entry=EntryFilter(operation=Operation(50)))) == "Unknown entryFilter."
    assert fault_of_filter(AclFilter(entry=EntryFilter(permission=Permission(-3)))) == "Unknown entryFilter."


def test_spellings() -> None:
    assert Operation.DESCRIBE_CONFIGS.title == "DescribeConfigs"
    assert ResourceType.TRANSACTIONAL_ID.title == "TransactionalId"
    assert {Operation.from_text(each) for each in ("DescribeConfigs", "DESCRIBE_CONFIGS", "describe_configs")} == {10}
    assert Operation.from_text("Frobnicate") is Operation.UNKNOWN
    assert str(AclBinding(resource_of("topic f+"), entry_of("deny ann READ from *"))) == (
        "Deny Read for User:ann from host * on Topic:PREFIXED:f"
    )


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::00ab", "2001:db8:0:0:0:0:0:ab"),
        ("*", "*"),
        ("host1", "host1"),
        ("", ""),
    ],
)
def test_hosts_are_written_as_java_writes_them(address: str, host: str) -> None:
    assert normalize_host(address) == host


def test_a_decision_does_not_walk_over_other_acls() -> None:
    """Prefixes of 1,000 and of 20,000 other resources, and 1,000 other principals at the same resource."""
    costs = []
    for count in (1_000, 20_000):
        authorizer = authorizer_of({"topic team+": ["allow ann READ from *"]})
        for number in range(count):
            prefix = ResourcePattern(ResourceType.TOPIC, f"t{number:05}", PatternType.PREFIXED)
            authorizer.replace_acls(prefix, [entry_of("allow rob READ from *")])
        others = [entry_of(f"allow user{number} READ from *") for number in range(1_000)]
        authorizer.replace_acls(resource_of("topic *"), others)

        def decide(authorizer: Authorizer = authorizer) -> None:
            assert may(authorizer, "ann", H1, "READ", "topic team-1")
            assert not may(authorizer, "ann", H1, "WRITE", "topic team-1")
            assert authorizer.is_allowed_anywhere("User:ann", H1, Operation.READ, ResourceType.TOPIC)

        costs.append(count_steps(decide))
    assert costs[0] == costs[1]


def test_a_client_cannot_fill_the_cache_of_its_connection() -> None:
    cache = DecisionCache(Authorizer(), "User:ann", H1)
    for number in range(2 * RESOURCES_MAX + 10):
        assert not cache.is_allowed(Operation.READ, ResourceType.GROUP, f"g{number}")
    cache.is_allowed(Operation.READ, ResourceType.GROUP, "g" * (NAME_MAX + 1))
    kept = cache._masks[ResourceType.GROUP]
    assert len(kept) <= RESOURCES_MAX
    assert max(map(len, kept)) <= NAME_MAX


def test_many_connections_share_the_memory_of_their_caches() -> None:
    authorizer = Authorizer()
    for connections, most in ((1, RESOURCES_MAX), (1_000, ALL_MAX // 1_000), (100_000, RESOURCES_MIN)):
        authorizer.caches = connections
        cache = DecisionCache(authorizer, "User:ann", H1)
        sizes = []
        for number in range(RESOURCES_MAX + 10):
            cache.is_allowed(Operation.READ, ResourceType.GROUP, f"g{number}")
            sizes.append(len(cache._masks[ResourceType.GROUP]))
        assert max(sizes) == most


def test_a_cached_decision_is_two_look_ups() -> None:
    cache = DecisionCache(authorizer_of({RESOURCE: TOPIC_ACLS}), "User:ann", H1)
    cache.is_allowed(Operation.WRITE, ResourceType.TOPIC, "foo-1")
    assert count_steps(lambda: cache.is_allowed(Operation.WRITE, ResourceType.TOPIC, "foo-1")) < 40
