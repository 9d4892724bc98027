"""The package protobuf, imported at its first use.

Zone: pure.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ottla.schemas.errors import InvalidSchema


def import_runtime(name: str) -> Any:
    """A module of `google.protobuf`, such as `descriptor_pb2`. Raises InvalidSchema: protobuf is not installed."""
    try:
        return import_module(f"google.protobuf.{name}")
    except ImportError as error:
        raise InvalidSchema("schemas of type PROTOBUF need the package protobuf: pip install 'protobuf>=5'") from error
