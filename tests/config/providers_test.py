"""Values in files, directories and environment variables."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from ottla.config.providers import resolve_values
from ottla.config.rows import ConfigError

PACKAGE = "org.apache.kafka.common.config.provider."


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "secrets.properties").write_text("key=from file\npath:colon = x\n")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "password").write_text("from directory")
    monkeypatch.setenv("KEPT_SECRET", "from environment")
    return tmp_path


def test_values_of_all_providers(kept: Path) -> None:
    pairs = {
        "config.providers": "file, env,dir",
        "config.providers.file.class": f"{PACKAGE}FileConfigProvider",
        "config.providers.env.class": "EnvVarConfigProvider",
        "a": f"${{file:{kept}/secrets.properties:key}}",
        "b": "<${env:KEPT_SECRET}>",
        "c": f"${{dir:{kept}/directory:password}} and ${{env:KEPT_SECRET}}",
        "d": "$HOME ${plain} ${}",
    }
    assert resolve_values(pairs) == {
        "a": "from file",
        "b": "<from environment>",
        "c": "from directory and from environment",
        "d": "$HOME ${plain} ${}",
    }


def test_without_providers_nothing_is_resolved() -> None:
    assert resolve_values({"a": "${env:HOME}", "b": "${x:y}"}) == {"a": "${env:HOME}", "b": "${x:y}"}


def test_a_value_is_not_looked_at_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT_SECRET", "${env:HOME}")
    assert resolve_values({"config.providers": "env", "a": "${env:KEPT_SECRET}"}) == {"a": "${env:HOME}"}


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("${env:UNSET_NAME}", "the environment variable is not set"),
        ("${env:/a:HOME}", "environment variables have no path"),
        ("${vault:/a:b}", "does not have this provider"),
        ("${file:DIR/secrets.properties:other}", "does not have this key"),
        ("${file:DIR/missing:key}", "No such file"),
        ("${file:key}", "absolute path"),
        ("${file:relative:key}", "absolute path"),
        ("${file:DIR/bytes:key}", "not text in UTF-8"),
        ("${dir:DIR/directory:../secrets.properties}", "does not name a file"),
        ("${dir:DIR/directory:}", "does not name a file"),
        ("${dir:DIR:directory}", "directory"),
    ],
)
def test_a_value_that_cannot_be_resolved_is_an_error_by_name(kept: Path, place: str, reason: str) -> None:
    (kept / "bytes").write_bytes(b"key=secret\xff")
    text = place.replace("DIR", str(kept))
    with pytest.raises(ConfigError) as caught:
        resolve_values({"config.providers": "file,env,dir", "ssl.key.password": f"x{text}"})
    assert str(caught.value).startswith("ssl.key.password")
    assert text in str(caught.value)
    assert reason in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert "secret\\xff" not in shown
    assert "from file" not in shown


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("DIR/directory", True), ("DIR/directory/../directory", True), ("DIR/directory2", False),
     ("DIR/directory/../directory2", False), ("/", False)],
)  # fmt: skip
def test_nothing_is_read_outside_of_allowed_paths(kept: Path, path: str, allowed: bool) -> None:
    (kept / "directory2").mkdir()
    (kept / "directory2" / "password").write_text("other")
    pairs = {
        "config.providers": "d",
        "config.providers.d.class": "DirectoryConfigProvider",
        "config.providers.d.param.allowed.paths": f"/nowhere,{kept}/directory/",
        "a": f"${{d:{path.replace('DIR', str(kept))}:password}}",
    }
    if allowed:
        assert resolve_values(pairs) == {"a": "from directory"}
    else:
        with pytest.raises(ConfigError, match=r"outside of allowed\.paths"):
            resolve_values(pairs)


def test_names_of_variables_can_be_limited(kept: Path) -> None:
    pairs = {"config.providers": "env", "config.providers.env.param.allowlist.pattern": "KEPT_.*"}
    assert resolve_values({**pairs, "a": "${env:KEPT_SECRET}"}) == {"a": "from environment"}
    with pytest.raises(ConfigError, match="does not allow this name"):
        resolve_values({**pairs, "a": "${env:XKEPT_}"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("class", "com.example.VaultProvider"),
        ("class", "org.apache.kafka.common.config.provider.ConfigProvider"),
        ("param.allowed.paths", "relative"),
        ("param.allowlist.pattern", "("),
    ],
)
def test_wrong_providers_are_errors(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"config.providers.file.{key}"):
        resolve_values({"config.providers": "file", f"config.providers.file.{key}": value})


def test_a_provider_without_a_class_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"config\.providers\.vault\.class"):
        resolve_values({"config.providers": "vault"})
