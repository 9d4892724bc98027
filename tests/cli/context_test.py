"""Contexts: settings under a name."""

from __future__ import annotations

import json
import socket
import stat

import pytest


@pytest.fixture
def nobody() -> str:
    """An address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Where contexts are kept."""
    monkeypatch.setenv("OTTLA_CONFIG_DIR", str(tmp_path))
    return tmp_path


def test_a_context_is_used_when_no_other_cluster_is_named(ottla, brokers: str, nobody: str, config) -> None:
    unset = {"OTTLA_BROKERS": ""}
    assert ottla("context", "add", "here", "-b", brokers, "-X", "client.id=me", "--use").exit_code == 0
    assert ottla("context", "add", "far", "-X", f"bootstrap.servers={nobody}").exit_code == 0
    assert ottla("topic", "list", env=unset).exit_code == 0
    assert ottla("topic", "list", "--context", "far", env=unset).exit_code == 1
    assert ottla("topic", "list", "--context", "far").exit_code == 1, (
        "what is named here counts more than OTTLA_BROKERS"
    )
    assert ottla("topic", "list", "--context", "far", "-b", brokers).exit_code == 0
    assert ottla("context", "use", "far").exit_code == 0
    assert ottla("topic", "list", env=unset).exit_code == 1
    assert ottla("topic", "list").exit_code == 0, "OTTLA_BROKERS counts more than the context in use"
    shown = json.loads(ottla("context", "list", "-o", "json").stdout)
    assert shown == [
        {"name": "far", "in_use": True, "brokers": nobody},
        {"name": "here", "in_use": False, "brokers": brokers},
    ]
    assert ottla("context", "remove", "far").exit_code == 0
    assert ottla("context", "list", "-o", "name").stdout == "here\n"
    assert ottla("context", "show").exit_code == 2, "the one in use is gone"


LOGIN = [
    word
    for setting in ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=me", "sasl.password=x")
    for word in ("-X", setting)
]


def test_a_login_goes_to_the_brokers_of_its_context_only(ottla, brokers: str, nobody: str, config) -> None:
    assert ottla("context", "add", "far", "-b", f"{nobody},{nobody}9", *LOGIN, "--use").exit_code == 0
    elsewhere = ottla("topic", "list", "-b", brokers)
    assert elsewhere.exit_code == 0, "without the login, which this broker would not take"
    assert f"its settings are not used for {brokers}" in elsewhere.stderr
    assert ottla("topic", "list").exit_code == 0, "OTTLA_BROKERS also names others"
    for words in (("-b", brokers), ("-X", f"bootstrap.servers={nobody},{brokers}")):
        refused = ottla("topic", "list", "--context", "far", *words)
        assert refused.exit_code == 2
        assert "has a login for" in refused.stderr
    refused = ottla("topic", "list", "-b", nobody, env={"OTTLA_BROKERS": ""})
    assert "cannot connect" in refused.stderr, "one of the context's own"


def test_a_login_without_brokers_is_for_those_that_are_named(ottla, brokers: str, config) -> None:
    assert ottla("context", "add", "login", *LOGIN).exit_code == 0
    assert ottla("topic", "list", "--context", "login", "-b", brokers, "--timeout", "1").exit_code != 0


def test_passwords_are_kept_and_not_shown(ottla, config, tmp_path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=x:1\nssl.key.password=hush\nlinger.ms=3\n")
    ottla("context", "add", "safe", "--command-config", str(file))
    assert ottla("context", "show", "safe").stdout.splitlines() == [
        "bootstrap.servers=x:1", "ssl.key.password=[hidden]", "linger.ms=3",
    ]  # fmt: skip
    kept = config / "contexts" / "safe.properties"
    assert "ssl.key.password=hush" in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_settings_that_a_client_does_not_have_give_a_warning(ottla, brokers: str, config) -> None:
    ottla("context", "add", "mixed", "-b", brokers, "-X", "linger.ms=3")
    assert "context mixed: linger.ms is not a setting" in ottla("topic", "list", "--context", "mixed").stderr
    written = ottla("produce", "context-topic", "--context", "mixed", stdin="x\n")
    assert (written.exit_code, written.stderr) == (0, "")


def test_contexts_that_are_none(ottla, config) -> None:
    for words in (
        ["context", "add", "empty"],
        ["context", "add", "../up", "-b", "x:1"],
        ["context", "use", "missing"],
        ["context", "use"],
        ["context", "remove", "missing"],
        ["context", "show"],
        ["topic", "list", "--context", "missing"],
    ):
        result = ottla(*words)
        assert result.exit_code == 2, words
        assert "Traceback" not in result.stderr
    (config / "contexts").mkdir()
    (config / "contexts" / "broken.properties").write_bytes(b"\xff\n")
    assert ottla("context", "show", "broken").exit_code == 2
    (config / "context").write_text("../etc\n")
    assert ottla("context", "show").exit_code == 2
