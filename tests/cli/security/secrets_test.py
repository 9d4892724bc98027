"""Known secrets are nowhere but where they belong: not in logs, DescribeConfigs, `ps`, output or tracebacks.

Zone: real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from ottla.cli.main import cli
from ottla.client import Admin, ClientConfig, Cluster, Resource, ResourceType

SECRETS = {
    "from_file": "hunter-FILE-2c1f",
    "from_env": "hunter-ENV-93ab",
    "from_dir": "hunter-DIR-77de",
    "in_text": "hunter-TEXT-0b5c",
}


def assert_clean(text: str, where: str) -> None:
    found = [name for name, secret in SECRETS.items() if secret in text]
    assert found == [], f"{where} has {found}"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A directory with secrets of each kind."""
    (tmp_path / "secrets.properties").write_text(f"key={SECRETS['from_file']}\n")
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "password").write_text(SECRETS["from_dir"])
    return tmp_path


def provider_lines(kept: Path) -> str:
    package = "org.apache.kafka.common.config.provider."
    return (
        f"config.providers=file,env,dir\nconfig.providers.file.class={package}FileConfigProvider\n"
        f"config.providers.file.param.allowed.paths={kept}\n"
    )


# -- a broker ----------------------------------------------------------------------------------------------------------


class Running(NamedTuple):
    process: subprocess.Popen[str]
    bootstrap: str
    log: Path


@pytest.fixture
def server(kept: Path) -> Iterator[Running]:
    """`ottla server` with secrets of all kinds in its file, and its log."""
    file, ready, log = kept / "server.properties", kept / "ready", kept / "log"
    file.write_text(
        f"{provider_lines(kept)}node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={kept}/data\n"
        f"ssl.key.password=${{file:{kept}/secrets.properties:key}}\n"
        "delegation.token.secret.key=${env:KEPT_SECRET}\n"
        f"listener.name.external.ssl.keystore.password=${{dir:{kept}/mounted:password}}\n"
        f"ssl.keystore.password={SECRETS['in_text']}\n"
    )
    words = [sys.executable, "-m", "ottla", "server", "--config", str(file), "--ready-file", str(ready)]
    env = {**os.environ, "KEPT_SECRET": SECRETS["from_env"]}
    with log.open("w") as out:
        process = subprocess.Popen(
            [*words, "--log-level", "TRACE"], env=env, stdout=subprocess.PIPE, stderr=out, text=True
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready bootstrap="), log.read_text()
    yield Running(process, line.strip().partition("=")[2], log)
    process.send_signal(signal.SIGTERM)
    process.stdout.close()
    process.wait()


@pytest.mark.slow
def test_a_broker_keeps_its_secrets(server: Running) -> None:
    assert_clean(Path(f"/proc/{server.process.pid}/cmdline").read_text(), "ps")
    with Cluster(ClientConfig(bootstrap_servers=server.bootstrap)) as cluster:
        for name in ("1", ""):
            configs = Admin(cluster).describe_configs([Resource(ResourceType.BROKER, name)], documentation=True)
            assert_clean(repr(configs), f"DescribeConfigs of {name!r}")
    for words in (("topic", "create", "t"), ("broker", "list"), ("cluster", "describe"), ("topic", "describe", "t")):
        done = CliRunner().invoke(cli, [*words, "-b", server.bootstrap])
        assert_clean(done.output, " ".join(words))
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert_clean(server.log.read_text(), "the log")


@pytest.mark.parametrize(
    "line",
    [
        "num.partitions=${file:DIR/secrets.properties:key}",
        "ssl.key.password=${file:DIR/secrets.properties:other}",
        "node.id=${dir:DIR/mounted:password}",
        "listeners=${env:KEPT_SECRET}",
    ],
)
def test_a_broker_that_cannot_start_names_the_key_only(kept: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """A secret in the place of a number or an address is not quoted by the error about it."""
    monkeypatch.setenv("KEPT_SECRET", SECRETS["from_env"])
    file = kept / "server.properties"
    file.write_text(provider_lines(kept) + line.replace("DIR", str(kept)) + "\n")
    done = CliRunner().invoke(cli, ["server", "--config", str(file)])
    assert done.exit_code == 2
    assert line.partition("=")[0] in done.stderr
    assert_clean(done.output, "the error")


# -- clients -----------------------------------------------------------------------------------------------------------


def client_file(kept: Path, password: str) -> str:
    file = kept / "client.properties"
    file.write_text(
        f"{provider_lines(kept)}security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=ann\n"
        f"sasl.password={password.replace('DIR', str(kept))}\n"
    )
    return str(file)


PLACES = {
    "${file:DIR/secrets.properties:key}": SECRETS["from_file"],
    "${env:KEPT_SECRET}": SECRETS["from_env"],
    "${dir:DIR/mounted:password}": SECRETS["from_dir"],
    SECRETS["in_text"]: SECRETS["in_text"],
}


@pytest.mark.parametrize("place", PLACES)
def test_the_settings_of_commands_refer_to_secrets(
    fake: Any, kept: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The password reaches the broker, and neither the output nor the traceback of the refused login."""
    from ottla.wire.apis import ApiKey
    from ottla.wire.messages import SaslAuthenticateResponse, SaslHandshakeResponse

    monkeypatch.setenv("KEPT_SECRET", SECRETS["from_env"])
    fake.broker.on[ApiKey.SASL_HANDSHAKE] = lambda asked: asked.reply(SaslHandshakeResponse(mechanisms=["PLAIN"]))
    refused = SaslAuthenticateResponse(error_code=58, error_message="no")
    fake.broker.on[ApiKey.SASL_AUTHENTICATE] = lambda asked: asked.reply(refused)
    words = ["topic", "list", "--debug", "-b", fake.broker.bootstrap, "--command-config", client_file(kept, place)]
    for more in ([], ["-o", "json"]):
        done = CliRunner().invoke(cli, [*words, *more])
        assert done.exit_code == 1
        assert "AuthenticationError" in done.stderr
        assert_clean(done.output, "the output")
    assert bytes(fake.broker.asked(ApiKey.SASL_AUTHENTICATE)[0].message().auth_bytes) == (
        f"\0ann\0{PLACES[place]}".encode()
    )


def test_a_context_keeps_the_reference_and_not_the_secret(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_CONFIG_DIR", str(kept / "config"))
    file = client_file(kept, "${file:DIR/secrets.properties:key}")
    assert (
        CliRunner().invoke(cli, ["context", "add", "mine", "-b", "127.0.0.1:1", "--command-config", file]).exit_code
        == 0
    )
    saved = (kept / "config" / "contexts" / "mine.properties").read_text()
    assert_clean(saved, "the context")
    assert "${file:" in saved
    assert_clean(CliRunner().invoke(cli, ["context", "show", "mine"]).output, "the output")
    missing = CliRunner().invoke(cli, ["topic", "list", "--context", "mine", "-X", "sasl.password=${env:NOT_SET}"])
    assert missing.exit_code == 2
    assert "sasl.password: cannot be resolved: ${env:NOT_SET}: the environment variable is not set" in missing.stderr


@pytest.mark.slow
def test_the_address_of_redis_may_be_kept_elsewhere(ottla: Any, kept: Path) -> None:
    secret = SECRETS["from_env"]
    address = f"redis://:{secret}@127.0.0.1:1/0"
    ottla("topic", "create", "kept.retry.1", "-p", "1")
    words = ("retry", "run", "kept.retry.1", "--idle-exit", "1", "--redis")
    for given, noted in (("${env:REDIS_URL}", False), (address, True)):
        done = ottla(*words, given, env={"REDIS_URL": address})
        assert done.exit_code == 1
        assert "127.0.0.1:1" in done.stderr
        assert ("other users of this machine see the password" in done.stderr) is noted
        assert_clean(done.output, "the output")
    unset = ottla(*words, "${env:UNSET_NAME}")
    assert unset.exit_code == 2
    assert "--redis: cannot be resolved: ${env:UNSET_NAME}" in unset.stderr


def test_no_command_takes_a_secret_as_a_word() -> None:
    for words in (("user", "create"), ("token", "create"), ("token", "renew"), ("tls", "make")):
        text = CliRunner().invoke(cli, [*words, "--help"]).output
        assert not {"--password ", "--secret", "--hmac"} & set(text.split())
        assert "--password " not in text.replace("--password-", "")
