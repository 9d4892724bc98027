"""CRC-32C (Castagnoli, RFC 3720), the checksum of record batches and of producer snapshots.

Zone: pure. Chooses the implementation, nothing else.

The package `crc32c` (LGPL-2.1) takes any buffer without a copy. Where it is missing, `google-crc32c`
(Apache-2.0) is used: it needs read-only bytes, which costs one copy per batch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final, Protocol, cast

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes."""


class Checksum(Protocol):
    """A CRC-32C function."""

    def __call__(self, data: Buffer, seed: int = 0, /) -> int:
        """The checksum of `data`, in 0 … 2³²-1; `seed` is the checksum of what came before it."""
        ...


def _from_crc32c_package() -> Checksum | None:
    """The package's C function, imported without its `__init__`, which takes 40 ms to look up its own version."""
    package = find_spec("crc32c")
    if package is None:
        return None
    spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return cast("Checksum", import_module("crc32c").crc32c)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("Checksum", module.crc32c)


def _from_google_package() -> Checksum | None:
    if find_spec("google_crc32c") is None:
        return None
    from google_crc32c import extend  # noqa: PLC0415  optional: imported only where it is the one installed

    def crc32c_of_copy(data: Buffer, seed: int = 0, /) -> int:
        return cast("int", extend(seed, bytes(data)))

    return crc32c_of_copy


def choose_implementation() -> Checksum:
    """The fastest implementation that is installed. Raises ImportError naming the packages when none is."""
    function = _from_crc32c_package() or _from_google_package()
    if function is None:
        raise ImportError("no CRC-32C implementation: install the package crc32c or google-crc32c")
    return function


crc32c: Final[Checksum] = choose_implementation()
"""`crc32c(data, seed=0) -> int`: hot, so bound once and called without a wrapper."""
