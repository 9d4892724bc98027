"""Contexts: client settings saved under a name, so that commands need not repeat them.

Zone: real. A context is a properties file in OTTLA_CONFIG_DIR, else in `ottla` under XDG_CONFIG_HOME or ~/.config:
`contexts/NAME.properties`; the file `context` beside it names the one in use. Prints nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import click

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def config_directory() -> Path:
    """Where contexts are saved; it may not exist yet."""
    own = os.environ.get("OTTLA_CONFIG_DIR")
    return Path(own) if own else Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "ottla"


def _context_file(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"{name!r} is not a valid name of a context: use letters, digits, '.', '_' and '-'")
    return config_directory() / "contexts" / f"{name}.properties"


def list_contexts() -> list[str]:
    """All contexts."""
    return sorted(
        each.name.removesuffix(".properties") for each in (config_directory() / "contexts").glob("*.properties")
    )


def current_context() -> str | None:
    """The context in use; None without one, or when its file was removed."""
    try:
        name = (config_directory() / "context").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return name if _NAME.fullmatch(name) and _context_file(name).exists() else None


def read_context(name: str) -> dict[str, str]:
    """The settings of a context. Raises click.UsageError if it does not exist or is not a properties file."""
    from ottla.client import ConfigError, parse_properties

    file = _context_file(name)
    try:
        return parse_properties(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(list_contexts()) or "there are none yet: ottla context add"
        raise click.UsageError(f"there is no context {name!r} ({known})") from None
    except (UnicodeDecodeError, ConfigError) as error:
        raise click.UsageError(f"{file}: {error}") from error


def write_context(name: str, settings: Mapping[str, object]) -> None:
    """Make a context, or replace it. Only the user may read the file: it may contain passwords."""
    file = _context_file(name)
    text = "".join(f"{key}={value}\n" for key, value in settings.items())
    _replace_file(file, text)


def use_context(name: str | None) -> None:
    """Make this the context of commands that name no other; None: no context. Raises click.UsageError."""
    if name is None:
        (config_directory() / "context").unlink(missing_ok=True)
        return
    read_context(name)
    _replace_file(config_directory() / "context", f"{name}\n")


def remove_context(name: str) -> None:
    """Delete a context. Raises click.UsageError for one that does not exist."""
    read_context(name)
    _context_file(name).unlink()


def _replace_file(file: Path, text: str) -> None:
    """Write the file atomically: a reader finds the old text or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
        out.write(text)
    beside.replace(file)
