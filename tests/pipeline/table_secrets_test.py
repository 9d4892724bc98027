"""Secrets in the properties of a table: in the processes that open it, and in no text."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from sqlalchemy.exc import SQLAlchemyError
from tests.tables.conftest import target_of

from ottla.pipeline import BadPipeline, TableTarget, iceberg
from ottla.pipeline.table_history import _open_table
from ottla.pipeline.table_output.secrets import open_secrets
from ottla.pipeline.table_output.sink import open_table
from ottla.tables.errors import ColumnConflictError, CommitConflict, TableError

SECRET = "hunter2"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableTarget:
    """A catalog whose place is the secret."""
    (tmp_path / SECRET).mkdir()
    monkeypatch.setenv("LAKE", SECRET)
    monkeypatch.setenv("LONGER", f"{SECRET}-and-more")
    properties = target_of("iceberg", tmp_path).properties
    hidden = {key: value.replace(str(tmp_path), f"{tmp_path}/${{env:LAKE}}") for key, value in properties.items()}
    return iceberg("lake.orders", properties={**hidden, "token": "${env:LONGER}"})


def test_a_reference_is_replaced_where_the_table_is_opened(lake: TableTarget, tmp_path: Path) -> None:
    with open_secrets(lake) as opened:
        assert opened.properties["uri"] == f"sqlite:///{tmp_path}/{SECRET}/catalog.db"
        assert opened.properties["token"] == f"{SECRET}-and-more"
    assert SECRET not in f"{lake.encode_text()} {lake!r} {lake}"
    # Not the error of a catalog that is not found: the history opens the one of the secret place.
    with pytest.raises(TableError, match="is not there"):
        _open_table("orders", lake)
    assert (tmp_path / SECRET / "catalog.db").exists()


def test_a_reference_without_a_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    lake = iceberg("lake.orders", properties={"uri": "sqlite://", "token": "${env:NOT_SET}"})
    with (
        pytest.raises(
            BadPipeline, match=r"iceberg lake\.orders: the property token: cannot be resolved: \$\{env:NOT_SET"
        ),
        open_secrets(lake),
    ):
        pass


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError(f"no host {SECRET}-and-more, {SECRET}"), TableError, "OSError: no host ${env:LONGER}, ${env:LAKE}"),
        (CommitConflict(f"lost at {SECRET}", "Start again"), CommitConflict, "lost at ${env:LAKE}. Start again"),
    ],
)
def test_errors_do_not_have_it(lake: TableTarget, error: Exception, kind: type[Exception], text: str) -> None:
    error.__cause__ = SQLAlchemyError(SECRET)
    with pytest.raises(kind) as found, open_secrets(lake):
        raise error
    assert str(found.value) == text
    assert SECRET not in "".join(traceback.format_exception(found.value))


def test_other_errors_stay_as_they_are(lake: TableTarget) -> None:
    error = ColumnConflictError("a column", "Cast it")
    with pytest.raises(ColumnConflictError) as found, open_secrets(lake):
        raise error
    assert found.value is error


def test_errors_of_libraries_do_not_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", SECRET)
    lake = iceberg("lake.orders", properties={"uri": "unknown://${env:LAKE}"})
    with pytest.raises(TableError, match=r"unknown://\$\{env:LAKE") as found, open_secrets(lake) as opened:
        open_table(opened)
    assert SECRET not in "".join(traceback.format_exception(found.value))
