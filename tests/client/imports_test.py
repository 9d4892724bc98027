"""The modules that `import ottla.client` loads, and the names that it exports.

Zone: real.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import ottla.client


@pytest.mark.parametrize("name", ottla.client.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(ottla.client, name).__class__
    assert name in dir(ottla.client)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Produzer"):
        _ = ottla.client.Produzer


@pytest.mark.parametrize(
    ("statement", "loaded", "not_loaded"),
    [
        ("import ottla.client", "ottla.client", "ottla.wire.messages"),
        ("from ottla.client import ClientConfig", "ottla.client.settings", "ottla.client.connections.connection"),
        ("from ottla.client import Producer", "ottla.client.producer.core", "ottla.client.consumer"),
        ("from ottla.client import Consumer", "ottla.client.consumer.fetch_positions", "ottla.client.producer"),
        ("from ottla.client import Producer, Consumer, Admin", "ottla.client.admin.admin", "ssl"),
    ],
)
def test_unused_modules_are_not_loaded(statement: str, loaded: str, not_loaded: str) -> None:
    program = f"import sys; {statement}; print({loaded!r} in sys.modules, {not_loaded!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
