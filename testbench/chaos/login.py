"""The settings with which a client of librdkafka logs in.

Zone: real.
"""

from __future__ import annotations

import os
from pathlib import Path

LOGIN = "CHAOS_LOGIN"
"""The variable that names a file of settings, one `key=value` in a line; unset: the client does not log in."""


def login_settings() -> dict[str, str]:
    """The settings in that file."""
    path = os.environ.get(LOGIN)
    lines = Path(path).read_text().splitlines() if path else []
    return {key: value for key, _, value in (line.partition("=") for line in lines)}
