"""The old name of `ottla.client.admin.transactions`, until the next release.

Zone: real.
"""

from __future__ import annotations

from typing import Any
from warnings import warn

from ottla.client.admin import transactions


def __getattr__(name: str) -> Any:
    found = getattr(transactions, name)
    warn(
        f"ottla.client.admin_transactions.{name} is now ottla.client.admin.transactions.{name}",
        DeprecationWarning,
        stacklevel=2,
    )
    return found
