"""Files that logins need: the users of one broker.

Zone: real.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import Final

from ottla.config.rows import ConfigError
from ottla.config.sources import parse_properties
from ottla.seams import Failure, Kind
from ottla.server.os_errors import failure_of

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
        raise Failure(Kind.NOT_DONE, f"ottla.sasl.users.file {path} is not a file of properties in UTF-8") from None
