"""What logins need from outside: the users of one broker, and the keys of those who issue tokens.

Zone: real.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ottla.config.rows import ConfigError
from ottla.config.sasl_listeners import SaslListener
from ottla.config.sources import parse_properties
from ottla.seams import Failure, Kind
from ottla.server.os_errors import failure_of

if TYPE_CHECKING:
    from ottla.server.token_keys import TokenKeys

log = logging.getLogger(__name__)

FILE_MAX: Final = 1 << 20
"""Most bytes of a file of users."""


def read_users(path: str | None) -> dict[str, str]:
    """The lines of `ottla.sasl.users.file`: user → password or credentials; none without a path.

    Raises Failure, without the content, when the file cannot be read.
    """
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_MAX + 1)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise failure_of(error, path) from None
    if mode & 0o077:
        log.warning("%s: other users can read the passwords; run chmod 600 %s", path, path)
    if len(content) > FILE_MAX:
        raise Failure(Kind.NOT_DONE, f"ottla.sasl.users.file {path} has more than {FILE_MAX} bytes")
    try:
        return parse_properties(content.decode())
    except (UnicodeDecodeError, ConfigError):
        # Without the text of the error, and `from None`: both may quote a line of the file, which has a password.
        raise Failure(Kind.NOT_DONE, f"ottla.sasl.users.file {path} is not a file of properties in UTF-8") from None


def open_token_keys(listeners: Mapping[str, SaslListener]) -> dict[str, TokenKeys]:
    """The keys of each listener that accepts signed tokens. Raises Failure."""
    wanted = {
        name: listener.bearer
        for name, listener in listeners.items()
        if listener.bearer is not None and not listener.bearer.is_unsecured
    }
    if not wanted:
        return {}
    try:
        from ottla.server.token_keys import TokenKeys  # noqa: PLC0415 - needs an extra
    except ImportError as error:
        text = f"OAUTHBEARER with signed tokens needs the package {error.name}: pip install 'ottla[oauth]'"
        raise Failure(Kind.NOT_DONE, text) from None
    return {name: TokenKeys(name, settings) for name, settings in wanted.items()}
