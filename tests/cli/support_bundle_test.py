"""`ottla support-bundle`: its parts, what fails, and no secrets."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from tests.cli.conftest import Ottla

from ottla.cli.diagnosis.bundle_parts import Part, hide_secrets, read_log_end, setting_value
from ottla.client import ConfigEntry
from ottla.client.admin.types import ConfigSource
from ottla.server.embedded import EmbeddedBroker

SECRET = "pa55w0rd"


def read_bundle(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as bundle:
        found = {}
        for member in bundle.getmembers():
            stream = bundle.extractfile(member)
            assert stream is not None
            found[member.name.removeprefix("ottla-support/")] = stream.read()
    return found


@pytest.mark.slow
def test_a_bundle_has_all_parts_and_no_secrets(ottla: Ottla, tmp_path: Path) -> None:
    # Settings of the broker and of the client that hold secrets, and a log that names one.
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{SECRET}";'
    config = {"listener.name.plaintext.plain.sasl.jaas.config": jaas, "num.partitions": "2"}
    log, path = tmp_path / "server.log", tmp_path / "b.tar.gz"
    log.write_text(f"started\nloaded sasl.password={SECRET} from it\n")
    with EmbeddedBroker(config=config) as broker:
        address = ("-b", broker.bootstrap)
        ottla("topic", "create", "bundled", "-c", "retention.ms=1234567", *address)
        words = ("--log", str(log), "--log", str(tmp_path / "none.log"), "--metrics", "http://127.0.0.1:1/metrics")
        settings = ("-X", f"sasl.password={SECRET}", "-X", f"ssl.key.password={SECRET}")
        done = ottla("support-bundle", str(path), *words, *address, *settings, "-o", "json")
    assert done.exit_code == 0, done.stderr
    parts = {each["name"]: each["error"] for each in json.loads(done.stdout)["parts"]}
    found = read_bundle(path)
    assert list(found) == list(parts)
    assert [name for name, error in parts.items() if error] == [
        "metrics-1.txt.error.txt", "logs/2-none.log.error.txt",
    ]  # fmt: skip
    assert b"No such file" in found["logs/2-none.log.error.txt"]
    assert found["logs/1-server.log"] == b"started\nloaded sasl.password=[hidden] from it\n"
    assert json.loads(found["topic-configs.json"])["bundled"]["retention.ms"] == "1234567"
    (of_broker,) = json.loads(found["broker-configs.json"]).values()
    assert of_broker["listener.name.plaintext.plain.sasl.jaas.config"] == "[hidden]"
    assert of_broker["num.partitions"] == "2"
    assert json.loads(found["about.json"])["client_settings"]["sasl.password"] == "[hidden]"
    assert json.loads(found["health.json"])["healthy"] is True
    assert {"cluster.json", "topics.json", "groups.json", "log-dirs.json", "api-versions.json"} <= set(found)
    everything = b"".join(found.values()) + done.stdout_bytes + done.stderr.encode()
    assert SECRET.encode() not in everything


@pytest.mark.slow
def test_a_cluster_that_does_not_answer(ottla: Ottla, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    words = ("support-bundle", str(path), "-b", "127.0.0.1:1", "--timeout", "0.2")
    assert ottla(*words).exit_code == 0
    found = read_bundle(path)
    assert {"about.json", "health.json", "cluster.json.error.txt", "groups.json.error.txt"} <= set(found)
    assert b"127.0.0.1:1" in found["cluster.json.error.txt"]
    assert ottla(*words).exit_code == 2, "it exists"
    assert ottla("support-bundle", str(path), "--metrics", "file:///etc/passwd", "--overwrite").exit_code == 2


def test_parts_are_bounded_and_a_bug_in_one_is_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.cli.commands.cluster.support_bundle import _write_part
    from ottla.cli.diagnosis import bundle_parts

    monkeypatch.setattr(bundle_parts, "PART_BYTES", 100)
    path = tmp_path / "b.tar.gz"
    with tarfile.open(path, "w:gz") as bundle:
        for part in (Part("a", lambda: b"x" * 101), Part("b", lambda: {}["none"])):  # type: ignore[arg-type, return-value]
            _write_part(bundle, part)
    found = read_bundle(path)
    assert found["a.cut"] == b"x" * 100
    assert found["b.error.txt"].startswith(b"a bug: KeyError: 'none'")


@pytest.mark.parametrize(
    ("name", "value", "sensitive", "expected"),
    [("ssl.key.password", SECRET, False, "[hidden]"), ("x", SECRET, True, "[hidden]"), ("a", "5", False, "5"),
     ("sasl.jaas.config", SECRET, False, "[hidden]"), ("delegation.token.secret.key", SECRET, False, "[hidden]"),
     ("ssl.keystore.key", SECRET, False, "[hidden]"), ("none", None, False, None),
     ("other", f'a password="{SECRET}";', False, "a password=[hidden];")],
)  # fmt: skip
def test_values_of_settings(name: str, value: str | None, sensitive: bool, expected: str | None) -> None:
    entry = ConfigEntry(name, value, ConfigSource.STATIC_BROKER_CONFIG, False, sensitive)
    assert setting_value(entry) == expected


def test_secrets_in_text() -> None:
    assert hide_secrets(f'{{"password": "{SECRET}", "n": 1}} token={SECRET}, my.secret: {SECRET}') == (
        '{"password": [hidden], "n": 1} token=[hidden], my.secret: [hidden]'
    )
    assert hide_secrets("x" * 100_000 + "secret" * 10_000)[-6:] == "secret", "in linear time"
    assert hide_secrets("the passwords are not shown") == "the passwords are not shown"


def test_the_end_of_a_long_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"x" * (4 << 20) + b"\nlast \xff\n")
    assert read_log_end(str(path)) == b"last \xff\n"
    with pytest.raises(OSError, match="is not a regular file"):
        read_log_end("/dev/zero")
