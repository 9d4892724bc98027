"""The grammar of messages, as a fixture: tests have no package to import it from."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load() -> ModuleType:
    name = "ottla_wire_grammar"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("grammar.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def grammar() -> ModuleType:
    """tests/wire/grammar.py."""
    return _load()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `message_class` runs for every declared message."""
    if "message_class" in metafunc.fixturenames:
        classes = _load().ALL
        metafunc.parametrize("message_class", classes, ids=[cls.__name__ for cls in classes])
