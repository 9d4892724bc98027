"""Imports the names of a package at their first use, so that an import costs only what is used.

Zone: pure. For the `__init__` of packages with many public names:

    __getattr__, __dir__ = names_on_demand(globals(), {"package.module": "Name OtherName"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_on_demand(
    package: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package (PEP 562).

    package: its globals, which cache imported names. homes: module → its names, separated by spaces.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        found = package[name] = getattr(import_module(home_of[name]), name)
        return found

    def names() -> list[str]:
        return sorted({*package, *home_of})

    return get, names
