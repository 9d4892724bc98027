"""Values that are kept elsewhere: `${file:/path:key}`, `${env:NAME}`, `${dir:/path:name}` (KIP-297, KIP-421, KIP-887).

Zone: real. Reads files and the environment. The keys, as in Kafka:

1. `config.providers` names providers, such as `file,env,dir`.
2. `config.providers.NAME.class` is one of Kafka's three classes, with or without its package; for the names `file`,
   `env`, `dir` and `directory` it may be left out.
3. `config.providers.NAME.param.allowed.paths` are files or directories, outside of which nothing is read;
   `….param.allowlist.pattern` is what the names of environment variables must match.

A value that was read is not looked at again. A value that cannot be resolved is an error; Kafka would take the text
`${…}` itself for the password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.config.rows import ConfigError
from ottla.config.sources import parse_properties

PROVIDERS: Final = "config.providers"
_PREFIX: Final = f"{PROVIDERS}."
_PACKAGE: Final = "org.apache.kafka.common.config.provider."
_FILE, _ENV, _DIRECTORY = "FileConfigProvider", "EnvVarConfigProvider", "DirectoryConfigProvider"
_CLASSES: Final = {"file": _FILE, "env": _ENV, "dir": _DIRECTORY, "directory": _DIRECTORY}
_PLACE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
"""Kafka's pattern: provider, path (may be missing), key."""
_FILE_MAX: Final = 1 << 20


class _Provider(NamedTuple):
    kind: str
    allowed_paths: tuple[str, ...]
    allowed_names: re.Pattern[str] | None


class _Unresolved(Exception):
    """Why a place has no value. The text does not contain one."""


def is_provider_key(key: str) -> bool:
    """Whether a key declares providers."""
    return key == PROVIDERS or key.startswith(_PREFIX)


def find_references(text: str) -> list[str]:
    """The places of a value that refer to another one, such as `${env:NAME}`."""
    return [place[0] for place in _PLACE.finditer(text)]


def resolve_values(pairs: Mapping[str, str]) -> dict[str, str]:
    """The pairs with what their values refer to, and without the keys of providers.

    Without `config.providers` all values stay as they are. Raises ConfigError with the key whose value cannot be
    resolved; its message has no value.
    """
    names = [name.strip() for name in pairs.get(PROVIDERS, "").split(",") if name.strip()]
    providers = {name: _parse_provider(name, pairs) for name in names}
    own = {key: text for key, text in pairs.items() if not is_provider_key(key)}
    return {key: _resolve_text(key, text, providers) for key, text in own.items()} if providers else own


def _resolve_text(key: str, text: str, providers: Mapping[str, _Provider]) -> str:
    def look_up(place: re.Match[str]) -> str:
        name, path, wanted = place.groups()
        try:
            if name not in providers:
                raise _Unresolved("config.providers does not have this provider")
            return _look_up(providers[name], path or "", wanted)
        except _Unresolved as reason:
            raise ConfigError(key, f"cannot be resolved: {place[0]}: {reason}") from None

    # One pass: a value that contains `${…}` is not resolved again, so a file cannot refer to another one.
    return _PLACE.sub(look_up, text)


def _parse_provider(name: str, pairs: Mapping[str, str]) -> _Provider:
    key = f"{_PREFIX}{name}.class"
    kind = pairs.get(key, _CLASSES.get(name, "")).strip().removeprefix(_PACKAGE)
    if kind not in _CLASSES.values():
        raise ConfigError(key, f"must be {_FILE}, {_ENV} or {_DIRECTORY}; Java classes cannot be loaded")
    paths_key = f"{_PREFIX}{name}.param.allowed.paths"
    paths = tuple(path.strip() for path in pairs.get(paths_key, "").split(",") if path.strip())
    if not all(map(os.path.isabs, paths)):
        raise ConfigError(paths_key, "must be absolute paths")
    names_key = f"{_PREFIX}{name}.param.allowlist.pattern"
    try:
        names = re.compile(pairs[names_key]) if pairs.get(names_key) else None
    except re.error:
        raise ConfigError(names_key, "is not a regular expression") from None
    return _Provider(kind, tuple(map(os.path.normpath, paths)), names)


def _look_up(provider: _Provider, path: str, wanted: str) -> str:
    if provider.kind == _ENV:
        return _find_variable(provider, path, wanted)
    if not os.path.isabs(path):
        raise _Unresolved("it needs an absolute path")
    # Normalized first, so that `/allowed/../secret` is compared as `/secret`. A comparison of texts would also accept
    # `/allowed-too` for `/allowed`: `commonpath` compares whole components.
    normal = os.path.normpath(path)
    if provider.allowed_paths and not any(
        os.path.commonpath((normal, allowed)) == allowed for allowed in provider.allowed_paths
    ):
        raise _Unresolved("the path is outside of allowed.paths")
    if provider.kind == _DIRECTORY:
        # A name with a slash would leave the directory that was checked above.
        if not wanted or os.path.basename(wanted) != wanted or wanted in (".", ".."):
            raise _Unresolved("it does not name a file of the directory")
        return _read_text(os.path.join(normal, wanted))
    found = parse_properties(_read_text(normal))
    if wanted not in found:
        raise _Unresolved("the file does not have this key")
    return found[wanted]


def _find_variable(provider: _Provider, path: str, name: str) -> str:
    if path:
        raise _Unresolved("environment variables have no path")
    if provider.allowed_names is not None and not provider.allowed_names.fullmatch(name):
        raise _Unresolved("allowlist.pattern does not allow this name")
    if name not in os.environ:
        raise _Unresolved("the environment variable is not set")
    return os.environ[name]


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(_FILE_MAX + 1)
        if len(content) > _FILE_MAX:
            raise _Unresolved("the file is larger than 1 MiB")
        return content.decode()
    except OSError as error:
        raise _Unresolved(error.strerror or "the file cannot be read") from None
    except UnicodeDecodeError:
        # `from None`: the error of Python has the content.
        raise _Unresolved("the file is not text in UTF-8") from None
