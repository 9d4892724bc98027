"""References such as `${env:NAME}` in the properties of a table: they are replaced where a table is opened.

Zone: real. So a secret is in the memory of processes that open the table, and in no plan, checkpoint or option of
Spark. Errors of the libraries may contain it, and Spark logs them: it is replaced in their texts.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ottla.config.providers import PROVIDERS, find_references, resolve_values
from ottla.config.rows import ConfigError
from ottla.pipeline.errors import BadPipeline
from ottla.pipeline.table_output.targets import TableTarget
from ottla.tables.errors import TableError

_KINDS: Final = "file,env,dir"


@contextmanager
def open_secrets(target: TableTarget) -> Iterator[TableTarget]:
    """The table with the values of its references; errors that are raised within do not have them.

    Raises BadPipeline with the property whose reference has no value.
    """
    try:
        properties = _resolve(target.properties)
        secrets = _resolve({each: each for text in target.properties.values() for each in find_references(text)})
    except ConfigError as error:
        raise BadPipeline(f"{target}: the property {error}") from None
    try:
        yield replace(target, properties=properties)
    except Exception as error:
        if not any(value and value in _text_of(error) for value in secrets.values()):
            raise
        raise _without_secrets(error, secrets) from None


def _resolve(pairs: Mapping[str, str]) -> dict[str, str]:
    found = resolve_values({**pairs, PROVIDERS: _KINDS})
    return {key: value for key, value in found.items() if key in pairs}


def _text_of(error: BaseException) -> str:
    # With the errors that it came from, because a log has them as well.
    return "".join(traceback.format_exception(error))


def _without_secrets(error: Exception, secrets: Mapping[str, str]) -> TableError:
    text = f"{error}" if isinstance(error, TableError) else f"{type(error).__name__}: {error}"
    # Longer ones first: one may be a part of another.
    for reference, value in sorted(secrets.items(), key=lambda each: -len(each[1])):
        text = text.replace(value, reference) if value else text
    return type(error)(text) if isinstance(error, TableError) else TableError(text)
