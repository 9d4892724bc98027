"""Fixtures of the asyncio clients' tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from tests.client.producer.conftest import bench

__all__ = ["bench", "run"]

R = TypeVar("R")


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, R]], R]:
    """Runs a coroutine in a new loop, and fails if that loop's exception handler was called."""

    def run(main: Coroutine[Any, Any, R]) -> R:
        complaints: list[str] = []

        async def watched() -> R:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(str(context)))
            return await main

        result = asyncio.run(watched())
        assert not complaints, complaints
        return result

    return run
