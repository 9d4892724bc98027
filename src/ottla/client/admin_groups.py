"""The old name of `ottla.client.admin.groups`, until the next release.

Zone: real.
"""

from __future__ import annotations

from typing import Any
from warnings import warn

from ottla.client.admin import groups


def __getattr__(name: str) -> Any:
    found = getattr(groups, name)
    warn(f"ottla.client.admin_groups.{name} is now ottla.client.admin.groups.{name}", DeprecationWarning, stacklevel=2)
    return found
