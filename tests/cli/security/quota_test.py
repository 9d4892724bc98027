"""`ottla quota` and `ottla token`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from ottla.client.security.settings import SECURITY_KEYS, SecurityConfig
from ottla.client.settings import parse_properties


def test_quotas_are_set_listed_and_removed(fake, run) -> None:
    both = ("--user", "ann", "--default-client-id")
    made = run("quota", "set", *both, "producer_byte_rate=1048576", "request_percentage=12.5")
    assert made.exit_code == 0
    assert made.stdout.splitlines() == [
        "user ann, client-id (default): producer_byte_rate set to 1048576",
        "user ann, client-id (default): request_percentage set to 12.5",
    ]
    run("quota", "set", "--ip", "10.0.0.1", "connection_creation_rate=5")
    assert [line.split() for line in run("quota", "list").stdout.splitlines()] == [
        ["USER", "CLIENT", "ID", "ADDRESS", "QUOTA", "VALUE"],
        ["-", "-", "10.0.0.1", "connection_creation_rate", "5"],
        ["ann", "(default)", "-", "producer_byte_rate", "1048576"],
        ["ann", "(default)", "-", "request_percentage", "12.5"],
    ]
    assert json.loads(run("quota", "list", "--user", "ann", "-o", "json").stdout) == [
        {
            "entity": {"user": "ann", "client_id": None},
            "quotas": {"producer_byte_rate": 1048576.0, "request_percentage": 12.5},
        }
    ]
    assert run("quota", "remove", *both, "producer_byte_rate").exit_code == 2
    assert run("quota", "remove", *both, "producer_byte_rate", "--yes").stdout == (
        "user ann, client-id (default): producer_byte_rate removed\n"
    )
    assert run("quota", "remove", *both, "producer_byte_rate", "--yes").exit_code == 3
    assert run("quota", "remove", *both, "--yes").exit_code == 0
    assert run("quota", "remove", *both, "--yes").exit_code == 3
    assert run("quota", "remove", "--user", "ann", "--yes").exit_code == 3
    assert list(fake.quotas) == [(("ip", "10.0.0.1"),)]


def test_a_dry_run_changes_nothing(fake, run) -> None:
    made = run("quota", "set", "--default-user", "consumer_byte_rate=1", "--dry-run")
    assert made.stdout == "user (default): consumer_byte_rate could be set to 1\n"
    assert fake.quotas == {}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("producer_byte_rate=1", "name the entity"),
        ("--user ann --default-user producer_byte_rate=1", "name the user, or its default"),
        ("--user ann --ip 10.0.0.1 producer_byte_rate=1", "is not combined"),
        ("--user ann speed=1", "'speed' is not a quota"),
        ("--user ann producer_byte_rate=fast", "is not a number"),
        ("--user ann producer_byte_rate", "not of the form key=value"),
    ],
)
def test_wrong_words_are_exit_code_2(fake, run, words: str, text: str) -> None:
    refused = run("quota", "set", *words.split())
    assert refused.exit_code == 2
    assert text in refused.stderr


def test_a_value_that_the_broker_refuses(run) -> None:
    refused = run("quota", "set", "--user", "ann", "producer_byte_rate=0")
    assert refused.exit_code == 1
    assert "quotas of user ann: INVALID_REQUEST: Quota producer_byte_rate must be greater than 0" in refused.stderr


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_token_is_written_to_a_file_that_logs_in(fake, run, tmp_path: Path) -> None:
    file = tmp_path / "spark.properties"
    words = ("--owner", "ann", "--renewer", "ben", "--max-lifetime", "2d", "-o", "json")
    made = run("token", "create", str(file), *words, "-X", "ssl.key.password=mine")
    assert made.exit_code == 0
    (document,) = json.loads(made.stdout)
    assert (document["token_id"], document["owner"], document["renewers"]) == ("token-1", "User:ann", ["User:ben"])
    assert document["max_ms"] - document["issued_ms"] == 2 * 24 * 3_600_000
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    settings = parse_properties(file.read_text())
    assert settings["bootstrap.servers"] == fake.broker.bootstrap
    assert "ssl.key.password" not in settings
    secured = {key: value for key, value in settings.items() if key in SECURITY_KEYS}
    config = SecurityConfig.from_mapping(secured | {"security.protocol": "SASL_PLAINTEXT"})
    assert config.login == ("token-1", "aG1hYyBvZiB0b2tlbi0x")
    assert config.jaas["tokenauth"] == "true"
    assert "aG1hYyBvZiB0b2tlbi0x" not in made.stdout + made.stderr
    assert run("token", "create", str(file)).exit_code == 2
    assert len(fake.tokens) == 1


def test_tokens_are_listed_renewed_and_expired_by_their_ids(fake, run, tmp_path: Path) -> None:
    run("token", "create", str(tmp_path / "1"), "--owner", "ann")
    run("token", "create", str(tmp_path / "2"))
    listed = run("token", "list")
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        ["token-1", "User:ann"],
        ["token-2", "User:admin"],
    ]
    assert "hmac" not in listed.stdout + run("token", "list", "-o", "json").stdout
    assert run("token", "list", "--owner", "ann", "-o", "name").stdout == "token-1\n"
    renewed = run("token", "renew", "token-1", "token-9", "--for", "2h", "-o", "jsonl")
    assert renewed.exit_code == 3
    assert json.loads(renewed.stdout) == {"token_id": "token-1", "expires_ms": 1_800_007_200_000}
    assert "token-9: DELEGATION_TOKEN_NOT_FOUND" in json.loads(renewed.stderr)["error"]["message"]
    assert run("token", "expire", "token-1").exit_code == 2
    assert run("token", "expire", "token-1", "--yes").stdout == "token-1 expires at 2027-01-15T08:00:00Z\n"
    assert list(fake.tokens) == ["token-2"]
    assert run("token", "renew", "token-2", "--for", "later").exit_code == 2
