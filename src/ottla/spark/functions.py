"""Columns of registered schemas in PySpark, without a jar: `from_avro`, `to_avro`, `from_protobuf`,
`to_protobuf`, `from_json_schema`, `to_json_schema`.

Zone: real. Functions over Arrow columns, in Spark's Python workers. A worker asks the registry for a schema once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from ottla.client.schemas.framed_columns import FramedColumns
from ottla.client.schemas.registry import RegisteredSchema, SchemaRegistry
from ottla.schemas.columns.formats import ColumnEncoder, make_writer
from ottla.schemas.framing import write_framing
from ottla.spark.arrow_types import spark_arrow_type, to_spark_array
from ottla.spark.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import Column

ERROR: Final = "_error"
"""The field that says why a row was not read."""
Mode = Literal["PERMISSIVE", "FAILFAST"]


class NotReadable(ValueError):
    """A value that its schema does not read; in mode FAILFAST it fails the task."""


def from_avro(
    data: Column | str,
    *,
    schema_registry: str,
    subject: str | None = None,
    version: int | str = "latest",
    schema: str | None = None,
    headers: Column | str | None = None,
    is_key: bool = False,
    mode: Mode = "PERMISSIVE",
    ca_file: str | None = None,
) -> Column:
    """Decode keys or values that Confluent's serializers, or compatible ones, have written with Avro schemas.

    data: binary, with the id of a schema in front (a byte 0 and four bytes, or a byte 1 and a guid), or named in the
    header `__value_schema_id` or `__key_schema_id` (is_key) of `headers`, the column of the source with
    `includeHeaders`. The columns are those of the reader's schema: `schema`, an Avro schema as text, or a version of
    `subject`, read from the registry when the function is called. Each row is read with the schema that it names, and
    resolved to the reader's: Avro's rules of schema evolution.

    mode: PERMISSIVE: a struct of the reader's fields (or `value`, if it is not a record) and `_error`: null, or why the
    row was not read; then the fields are nulls. FAILFAST: the value itself; a row that cannot be read fails the task.
    A null is a null. A registry that cannot be reached fails the task in both, which Spark then tries again.

    schema_registry: `http://HOST:PORT`, `https://USER:PASSWORD@HOST`; ca_file: as of `SchemaRegistry`, a path on every
    worker. Raises RegistryRequestError, InvalidSchema, BadOption.
    """
    reader = _find_reader("AVRO", schema_registry, ca_file, subject, version, schema)
    return _decode_column(reader, schema_registry, ca_file, is_key, mode, data, headers)


def from_json_schema(
    data: Column | str,
    *,
    schema_registry: str,
    subject: str | None = None,
    version: int | str = "latest",
    schema: str | None = None,
    headers: Column | str | None = None,
    is_key: bool = False,
    mode: Mode = "PERMISSIVE",
    ca_file: str | None = None,
) -> Column:
    """Decode keys or values that Confluent's serializers, or compatible ones, have written with JSON schemas.

    As `from_avro`, with a JSON schema: an object with `properties` is a struct, one with a schema of
    `additionalProperties` a map, an integer a bigint; properties that the schema does not name are left out. Where it
    leaves more than one type, or contains itself, the column is JSON text.
    """
    reader = _find_reader("JSON", schema_registry, ca_file, subject, version, schema)
    return _decode_column(reader, schema_registry, ca_file, is_key, mode, data, headers)


def from_protobuf(
    data: Column | str,
    *,
    schema_registry: str,
    subject: str | None = None,
    version: int | str = "latest",
    schema: str | None = None,
    message: str = "",
    headers: Column | str | None = None,
    is_key: bool = False,
    mode: Mode = "PERMISSIVE",
    ca_file: str | None = None,
) -> Column:
    """Decode keys or values that Confluent's serializers, or compatible ones, have written with Protobuf schemas.

    As `from_avro`, with a Protobuf schema: the columns are the fields of one message of the reader's schema, `message`,
    named with or without its package; empty: the first one. A row that is another message cannot be read. Fields are
    found by number, as Protobuf's rules of evolution say. Types are those of Spark's `from_protobuf`: enums are
    strings, Timestamp is a timestamp, Duration an interval, unsigned numbers are signed ones of the same bits. A field
    without presence that was not written is zero, as in Protobuf's own classes; one with presence is null.
    """
    reader = _find_reader("PROTOBUF", schema_registry, ca_file, subject, version, schema)._replace(message=message)
    return _decode_column(reader, schema_registry, ca_file, is_key, mode, data, headers)


def to_avro(
    data: Column | str,
    *,
    schema_registry: str,
    subject: str,
    version: int | str = "latest",
    schema: str | None = None,
    ca_file: str | None = None,
) -> Column:
    """Encode a column as Avro with the id of its schema in front, as Confluent's deserializers read it.

    data: a struct of the schema's fields, or a value of its type. Unions of several types are structs `member0`,
    `member1` …, as `from_avro` shows them. The schema is a version of `subject`; or `schema`, an Avro schema as text,
    which is registered in `subject` when the function is called, unless it is there. A null is a null. A value that is
    none of the schema fails the task. Raises RegistryRequestError, InvalidSchema.
    """
    number, found = _find_writer("AVRO", _registry(schema_registry, ca_file), subject, version, schema)
    return _encode_column(number, found, data)


def to_json_schema(
    data: Column | str,
    *,
    schema_registry: str,
    subject: str,
    version: int | str = "latest",
    schema: str | None = None,
    ca_file: str | None = None,
) -> Column:
    """Encode a column as JSON with the id of its schema in front, as Confluent's deserializers read it.

    As `to_avro`, with a JSON schema: data has the type that `from_json_schema` shows, JSON text where the schema leaves
    more than one. Fields that are null are left out unless they are required. Each value is compared with the schema,
    as JSONSerializer does.
    """
    number, found = _find_writer("JSON", _registry(schema_registry, ca_file), subject, version, schema)
    return _encode_column(number, found, data)


def to_protobuf(
    data: Column | str,
    *,
    schema_registry: str,
    subject: str,
    version: int | str = "latest",
    schema: str | None = None,
    message: str = "",
    ca_file: str | None = None,
) -> Column:
    """Encode a struct as Protobuf with the id of its schema in front, as Confluent's deserializers read it.

    As `to_avro`, with a Protobuf schema: data is a struct of fields of `message`, as of `from_protobuf`. Fields that
    are null, or that the struct lacks, are not written.
    """
    number, found = _find_writer("PROTOBUF", _registry(schema_registry, ca_file), subject, version, schema)
    return _encode_column(number, found._replace(message=message), data)


def _find_reader(
    kind: str, url: str, ca_file: str | None, subject: str | None, version: int | str, schema: str | None
) -> RegisteredSchema:
    if (subject is None) == (schema is None):
        raise BadOption("subject", "or schema, one of them, names the reader's schema")
    if schema is not None:
        return RegisteredSchema(schema, kind)
    assert subject is not None
    return _find_version(kind, _registry(url, ca_file), subject, version)[1]


def _find_writer(
    kind: str, registry: SchemaRegistry, subject: str, version: int | str, schema: str | None
) -> tuple[int, RegisteredSchema]:
    """The schema that is written, and its id. A text is registered."""
    if schema is None:
        return _find_version(kind, registry, subject, version)
    found = RegisteredSchema(schema, kind)
    return registry.register(subject, found), found


def _find_version(
    kind: str, registry: SchemaRegistry, subject: str, version: int | str
) -> tuple[int, RegisteredSchema]:
    number, found = registry.find_version(subject, version)
    if found.type != kind:
        raise BadOption("subject", f"{subject} has schemas of type {found.type}, not {kind}")
    return number, found


def _decode_column(
    reader: RegisteredSchema,
    url: str,
    ca_file: str | None,
    is_key: bool,
    mode: Mode,
    *columns: Column | str | None,
) -> Column:
    """columns: payloads, and their headers or None."""
    if mode not in ("PERMISSIVE", "FAILFAST"):
        raise BadOption("mode", f"is {mode!r}: it must be PERMISSIVE or FAILFAST")
    kind = _shown_type(_columns(url, ca_file, reader).type, mode)
    function = functools.partial(_decode, url, ca_file, reader, is_key, mode)
    return _arrow_function(function, from_arrow_type(kind), *(each for each in columns if each is not None))


def _encode_column(number: int, schema: RegisteredSchema, data: Column | str) -> Column:
    _writer(schema)  # raises here what would fail all tasks
    return _arrow_function(functools.partial(_encode, number, schema), "binary", data)


def _arrow_function(function: Callable[..., pa.Array], kind: Any, *columns: Column | str) -> Column:
    """A column that a function makes of Arrow arrays. Spark looks at the parameters and their types."""

    def convert_values(values: pa.Array) -> pa.Array:
        return function(values)

    def convert_with_headers(values: pa.Array, headers: pa.Array) -> pa.Array:
        return function(values, headers)

    made: Column = arrow_udf(convert_values if len(columns) == 1 else convert_with_headers, kind)(*columns)
    return made


# -- in the workers ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _registry(url: str, ca_file: str | None) -> SchemaRegistry:
    return SchemaRegistry(url, ca_file=ca_file)


@functools.lru_cache(maxsize=64)
def _columns(url: str, ca_file: str | None, reader: RegisteredSchema) -> FramedColumns:
    return FramedColumns(_registry(url, ca_file), reader)


def _shown_type(kind: pa.DataType, mode: Mode) -> pa.DataType:
    shown = spark_arrow_type(kind)
    if mode == "FAILFAST":
        return shown
    fields = list(shown) if pa.types.is_struct(shown) else [pa.field("value", shown)]
    if ERROR in [each.name for each in fields]:
        raise BadOption("mode", f"must be FAILFAST: the schema has a field {ERROR}, too")
    return pa.struct([*fields, pa.field(ERROR, pa.string())])


def _decode(
    url: str, ca_file: str | None, reader: RegisteredSchema, is_key: bool, mode: Mode, *arrays: pa.Array
) -> pa.Array:
    """arrays: payloads, and their headers if there are any."""
    payloads, headers = arrays[0], arrays[1] if len(arrays) > 1 else None
    array, reasons = _columns(url, ca_file, reader).decode(payloads, headers, is_key=is_key)
    shown, outside = to_spark_array(array, spark_arrow_type(array.type))
    if outside.any():
        text = pa.scalar("a value is outside of what Spark's type holds")
        reasons = pc.if_else(pa.array(outside), text, reasons)
    if mode == "PERMISSIVE":
        return _with_reasons(shown, reasons, payloads)
    if reasons.null_count < len(reasons):
        raise NotReadable(f'a row cannot be read: {reasons.drop_null()[0].as_py()}; mode="PERMISSIVE" shows such rows')
    return shown


def _with_reasons(array: pa.Array, reasons: pa.Array, payloads: pa.Array) -> pa.Array:
    """A struct of the fields and `_error`; a null payload is a null."""
    fields = array.flatten() if pa.types.is_struct(array.type) else [array]
    kind = _shown_type(array.type, "PERMISSIVE")
    mask = payloads.is_null() if payloads.null_count else None
    return pa.StructArray.from_arrays([*fields, reasons], fields=list(kind), mask=mask)


@functools.lru_cache(maxsize=64)
def _writer(schema: RegisteredSchema) -> ColumnEncoder:
    return make_writer(schema)


def _encode(number: int, schema: RegisteredSchema, values: pa.Array) -> pa.Array:
    return _writer(schema).encode_values(values, write_framing(number, b""))
