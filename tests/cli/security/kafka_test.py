"""Users, ACLs, quotas and tokens of Apache Kafka, through `ottla`, over TLS with certificates of `ottla tls make`.

Zone: real.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from testbench.apache_kafka.broker import KafkaNode
from testbench.ports import free_port

from ottla.acls import AclFilter, EntryFilter
from ottla.cli.main import cli
from ottla.client import AuthenticationError, Cluster, Producer, RefusedError
from ottla.client.admin import (
    AclAdmin,
    AnyName,
    QuotaAdmin,
    QuotaEntity,
    QuotaFilter,
    ScramAdmin,
    ScramDeletion,
    ScramMechanism,
    TokenAdmin,
)
from ottla.client.settings import ClientConfig, parse_properties
from ottla.errors import ErrorCode

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
Ottla = Callable[..., Result]


def invoke(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, list(words), input=stdin)


@pytest.fixture(scope="module")
def admin_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The settings of the super user of a cluster with an authorizer."""
    directory = tmp_path_factory.mktemp("authorizing")
    made = invoke("tls", "make", str(directory / "tls"), "-o", "json")
    assert made.exit_code == 0, made.stderr
    files = json.loads(made.stdout)["files"]
    node, port = KafkaNode(directory), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{node.port},SASL_SSL://127.0.0.1:{port}"
    node.settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{node.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files["broker"],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files["ca"],
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": SCRAM,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": SCRAM,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
        "delegation.token.secret.key": "a secret of the brokers",
    }
    node.format_options = ["--add-scram", "SCRAM-SHA-512=[name=admin,password=admin-secret]"]
    with node:
        yield str(login_file(directory / "admin.properties", port, files["ca"], "admin", "admin-secret"))


def login_file(path: Path, port: int, trusted: str, user: str, password: str) -> Path:
    path.write_text(
        f"bootstrap.servers=127.0.0.1:{port}\nsecurity.protocol=SASL_SSL\nssl.truststore.location={trusted}\n"
        f"sasl.mechanism=SCRAM-SHA-512\nsasl.username={user}\nsasl.password={password}\n"
    )
    return path


def settings_of(admin_file: str, **more: str) -> dict[str, Any]:
    found = parse_properties(Path(admin_file).read_text())
    return found | {key.replace("_", "."): value for key, value in more.items()}


@pytest.fixture
def ottla(admin_file: str) -> Ottla:
    """Runs `ottla WORDS…` as the super user."""
    return lambda *words, stdin="": invoke(*words, "--command-config", admin_file, stdin=stdin)


@pytest.fixture
def cluster(admin_file: str) -> Iterator[Cluster]:
    with Cluster(ClientConfig.from_mapping(settings_of(admin_file))) as made:
        yield made


def create_user(ottla: Ottla, name: str) -> None:
    made = ottla("user", "create", name, "--password-file", "-", stdin=f"{name}-secret\n")
    assert made.exit_code == 0, made.stderr


def until(check: Callable[[], bool]) -> None:
    """Brokers apply changes of the metadata a moment after they were answered."""
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def produce(admin_file: str, user: str, topic: str, secret: str = "") -> ErrorCode | str:
    """The error of a user's record, or its offset as text."""
    own = settings_of(admin_file, sasl_username=user, sasl_password=secret or f"{user}-secret")
    with Producer(own | {"max.block.ms": 30_000, "enable.idempotence": False}) as producer:
        try:
            return str(producer.send(topic, b"v").result(60).offset)
        except RefusedError as error:
            return error.code


def test_a_user_exists_from_its_creation_to_its_deletion(admin_file: str, ottla: Ottla, cluster: Cluster) -> None:
    create_user(ottla, "ann")
    until(lambda: ottla("user", "list", "ann").exit_code == 0)
    (listed,) = json.loads(ottla("user", "list", "ann", "-o", "json").stdout)
    assert [each["mechanism"] for each in listed["credentials"]] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    again = ottla("user", "create", "ann", "--password-file", "-", stdin="x\n")
    assert again.exit_code == 1
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        own = settings_of(admin_file, sasl_username="ann", sasl_password="ann-secret", sasl_mechanism=mechanism)
        with Cluster(ClientConfig.from_mapping(own)) as hers:
            hers.refresh()
    assert ottla("user", "delete", "ann", "--yes").exit_code == 0
    until(lambda: ottla("user", "list", "ann").exit_code == 3)
    with Cluster(ClientConfig.from_mapping(own)) as hers, pytest.raises(AuthenticationError):
        hers.refresh()
    gone = ScramAdmin(cluster).alter_user_scram_credentials([ScramDeletion("ann", ScramMechanism.SCRAM_SHA_256)])
    assert gone["ann"].code is ErrorCode.RESOURCE_NOT_FOUND  # type: ignore[union-attr]


def test_acls_let_a_user_in_and_out(admin_file: str, ottla: Ottla) -> None:
    create_user(ottla, "bob")
    assert ottla("topic", "create", "orders").exit_code == 0
    until(lambda: ottla("user", "list", "bob").exit_code == 0)
    assert produce(admin_file, "bob", "orders") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert ottla("acl", "check", "bob", "Write", "-t", "orders").exit_code == 1
    assert ottla("acl", "add", "--allow", "bob", "--producer", "-t", "ord", "--pattern", "prefixed").exit_code == 0
    until(lambda: ottla("acl", "check", "bob", "Write", "-t", "orders").exit_code == 0)
    assert produce(admin_file, "bob", "orders") == "0"
    assert ottla("acl", "add", "--deny", "bob", "-O", "Write", "-t", "orders").exit_code == 0
    until(lambda: ottla("acl", "check", "bob", "Write", "-t", "orders").exit_code == 1)
    assert produce(admin_file, "bob", "orders") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert ottla("acl", "list", "-t", "orders").stdout.count("User:bob") == 4
    removed = ottla("acl", "remove", "--deny", "bob", "--yes", "-o", "json")
    assert [each["permission"] for each in json.loads(removed.stdout)] == ["DENY"]
    until(lambda: ottla("acl", "check", "bob", "Write", "-t", "orders").exit_code == 0)
    refused = invoke(
        "acl", "list", "--command-config", admin_file, "-X", "sasl.username=bob", "-X", "sasl.password=bob-secret"
    )
    assert refused.exit_code == 4
    assert "CLUSTER_AUTHORIZATION_FAILED" in refused.stderr


def test_an_impossible_acl_is_refused_alone(ottla: Ottla, cluster: Cluster) -> None:
    made = ottla("acl", "add", "--allow", "eve", "-O", "Read", "-g", "", "-g", "fine")
    assert made.exit_code == 1
    assert "fine" in made.stdout
    assert "INVALID_REQUEST" in made.stderr
    eves = AclFilter(entry=EntryFilter(principal="User:eve"))
    until(lambda: len(AclAdmin(cluster).describe_acls(eves)) == 1)
    (deleted,) = AclAdmin(cluster).delete_acls([eves]).values()
    assert isinstance(deleted, dict)
    assert list(deleted.values()) == [None]


def test_quotas_of_all_kinds_of_entities(ottla: Ottla, cluster: Cluster) -> None:
    admin = QuotaAdmin(cluster)
    changes = {
        QuotaEntity(user="ann", client_id=None): {"producer_byte_rate": 1e6},
        QuotaEntity(user=None): {"request_percentage": 12.5},
        QuotaEntity(ip="10.0.0.1"): {"connection_creation_rate": 7},
        QuotaEntity(user="eve"): {"producer_byte_rate": -1},
        QuotaEntity(client_id="c"): {"speed": 1},
    }
    codes = {entity: getattr(error, "code", None) for entity, error in admin.alter_client_quotas(changes).items()}
    assert list(codes.values()) == [None, None, None, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]
    until(lambda: len(admin.describe_client_quotas()) == 3)
    assert set(admin.describe_client_quotas(QuotaFilter(user=AnyName.ANY))) == set(list(changes)[:2])
    assert admin.describe_client_quotas(QuotaFilter(user=None, strict=True)) == {
        QuotaEntity(user=None): {"request_percentage": 12.5}
    }
    assert "10.0.0.1" in ottla("quota", "list").stdout
    for words in (["--user", "ann", "--default-client-id"], ["--default-user"], ["--ip", "10.0.0.1"]):
        removed = ottla("quota", "remove", *words, "--yes")
        assert removed.exit_code == 0, removed.stderr
    until(lambda: admin.describe_client_quotas() == {})


def test_a_token_logs_in_until_it_expires(admin_file: str, ottla: Ottla, cluster: Cluster, tmp_path: Path) -> None:
    file = str(tmp_path / "token.properties")
    made = ottla("token", "create", file, "--renewer", "bob", "--max-lifetime", "1h", "-o", "name")
    assert made.exit_code == 0, made.stderr
    token_id = made.stdout.strip()
    until(lambda: token_id in ottla("token", "list", "-o", "name").stdout)
    assert invoke("topic", "list", "--command-config", file).exit_code == 0
    nested = invoke("token", "create", str(tmp_path / "another"), "--command-config", file)
    assert nested.exit_code == 1
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in nested.stderr
    (renewed,) = json.loads(ottla("token", "renew", token_id, "--for", "30m", "-o", "json").stdout)
    assert renewed["token_id"] == token_id
    (shown,) = (each for each in TokenAdmin(cluster).describe_delegation_tokens() if each.token_id == token_id)
    assert (shown.owner, shown.renewers) == ("User:admin", ("User:bob",))
    with pytest.raises(RefusedError, match="DELEGATION_TOKEN_NOT_FOUND"):
        TokenAdmin(cluster).renew_delegation_token(b"guess")
    assert ottla("token", "expire", token_id, "--yes").exit_code == 0
    until(lambda: token_id not in ottla("token", "list", "-o", "name").stdout)
    assert invoke("topic", "list", "--command-config", file).exit_code == 1
