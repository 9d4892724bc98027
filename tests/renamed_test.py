"""Old public names still work, with a warning."""

from __future__ import annotations

import pytest

from ottla.client.admin.types import LogDirReplica, Replica
from ottla.client.errors import LogTruncatedError
from ottla.renamed import renamed_argument
from ottla.types import TopicPartition

TP = TopicPartition("orders", 3)


@pytest.mark.parametrize(
    "value",
    [Replica(TP, 1), LogDirReplica(TP, 10, 0, is_future=False), LogTruncatedError(TP, 7, 5)],
    ids=lambda v: type(v).__name__,
)
def test_the_old_name_of_an_attribute(value: Replica | LogDirReplica | LogTruncatedError) -> None:
    with pytest.warns(DeprecationWarning, match="where is now"):
        assert value.where == TP


def test_the_old_name_of_an_argument() -> None:
    @renamed_argument("where", "tp")
    def shown(tp: TopicPartition, offset: int = 0) -> str:
        return f"{tp}@{offset}"

    with pytest.warns(DeprecationWarning, match="the argument where of shown is now tp"):
        assert shown(where=TP, offset=2) == "orders-3@2"  # type: ignore[call-arg]
    assert shown(TP) == shown(tp=TP) == "orders-3@0"


def test_the_old_name_of_a_function() -> None:
    from ottla.retry import headers

    with pytest.warns(DeprecationWarning, match="headers.read is now read_trail"):
        assert headers.read is headers.read_trail
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        headers.other  # noqa: B018


@pytest.mark.parametrize("module", ["admin_groups", "admin_transactions"])
def test_the_old_name_of_a_module(module: str) -> None:
    from importlib import import_module

    old = import_module(f"ottla.client.{module}")
    new = import_module(f"ottla.client.admin.{module.removeprefix('admin_')}")
    name = {"admin_groups": "GroupAdmin", "admin_transactions": "TransactionAdmin"}[module]
    with pytest.warns(DeprecationWarning, match="is now ottla.client.admin"):
        assert getattr(old, name) is getattr(new, name)
