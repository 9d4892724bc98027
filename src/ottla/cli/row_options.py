"""Command line options from the rows of options: their names, types, ranges, defaults and help.

Zone: real. Rows are in `ottla.config.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from ottla.config.options import INTEGER, NUMBER, Bounds, Option

F = TypeVar("F", bound=Callable[..., Any])


def row_options(rows: Iterable[Option], metavars: Mapping[str, str]) -> Callable[[F], F]:
    """An option for each row; its value is the argument named as the row's field. metavars: of values, by name."""

    def add(command: F) -> F:
        for row in reversed(list(rows)):
            command = _row_option(row, metavars.get(row.name))(command)
        return command

    return add


def _row_option(row: Option, metavar: str | None) -> Callable[[F], F]:
    unset = f" [default: {row.default_text}]" if row.default_text else ""
    return click.option(
        f"--{row.name}",
        row.attribute,
        type=_click_type(row),
        default=row.default,
        show_default=not row.default_text,
        multiple=isinstance(row.default, tuple),
        metavar=metavar,
        help=row.doc + unset,
    )


def _click_type(row: Option) -> click.ParamType[Any]:
    low, high = row.allowed if isinstance(row.allowed, Bounds) else (None, None)
    if row.type is INTEGER:
        return click.IntRange(None if low is None else int(low), None if high is None else int(high))
    return click.FloatRange(low, high) if row.type is NUMBER else click.STRING
