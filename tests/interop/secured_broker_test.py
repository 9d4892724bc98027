"""A broker with TLS, SCRAM and ACLs, set up and used by `ottla` alone: certificates, users, ACLs, quotas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]
PASSWORD = "not-in-any-log-5c1f"


def ottla(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    variables = {**os.environ, "OTTLA_BROKERS": "", "PASSWORD": PASSWORD}
    command = [sys.executable, "-m", "ottla", *words]
    return subprocess.run(command, input=given, capture_output=True, check=False, env=variables, timeout=60)


class Secured(NamedTuple):
    """A broker with a listener for the operator, and one for users."""

    operator: str
    users: str
    directory: Path

    def operate(self, *words: str) -> Any:
        done = ottla(*words, "-b", self.operator, "-o", "json")
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def as_user(self, name: str, password: str, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        file = self.directory / f"{name}.properties"
        login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{name}"'
        file.write_text(
            f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={self.directory}/tls/ca.pem\n"
            f'sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={login} password="{password}";\n'
        )
        return ottla(*words, "-b", self.users, "--command-config", str(file), "--timeout", "30", given=given)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    done = ottla("tls", "make", str(tmp_path / "tls"))
    assert done.returncode == 0, done.stderr.decode()
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.location": f"{tmp_path}/tls/broker.pem",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedBroker(str(tmp_path / "data"), settings) as broker:
        found = {each.listener: f"{each.host}:{each.port}" for each in broker.endpoints}
        yield Secured(found["PLAINTEXT"], found["SASL_SSL"], tmp_path)


def test_a_user_may_do_what_its_acls_allow(secured: Secured) -> None:
    secured.operate("user", "create", "alice", "--password-env", "PASSWORD")
    secured.operate("topic", "create", "t", "-p", "1")
    produce = ["produce", "t"]
    # 1. Without ACLs the user can log in, and may do nothing.
    refused = secured.as_user("alice", PASSWORD, *produce, given=b"one\n")
    assert refused.returncode != 0
    assert b"TOPIC_AUTHORIZATION_FAILED" in refused.stderr
    # 2. With them it produces and consumes.
    secured.operate("acl", "add", "--allow", "alice", "--producer", "-t", "t")
    secured.operate("acl", "add", "--allow", "alice", "--consumer", "-t", "t", "-g", "*")
    assert secured.as_user("alice", PASSWORD, *produce, given=b"two\n").returncode == 0
    assert secured.as_user("alice", PASSWORD, "consume", "t", "--offset", "start", "-e").stdout == b"two\n"
    # 3. `acl check` decides as the broker does.
    codes = [ottla("acl", "check", "alice", word, "-t", "t", "-b", secured.operator) for word in ("write", "delete")]
    assert [each.returncode for each in codes] == [0, 1], [each.stdout for each in codes]
    # 4. Another password is refused, and nothing discloses one.
    wrong = secured.as_user("alice", "wrong", "topic", "list")
    assert wrong.returncode != 0
    assert b"invalid credentials" in wrong.stderr
    for done in (refused, wrong, *codes):
        assert PASSWORD.encode() not in done.stdout + done.stderr
