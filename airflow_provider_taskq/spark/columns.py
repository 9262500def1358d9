"""The columns of a DataFrame as Spark and Arrow hold them: their names and types, and their values as JSON."""

import json
import math
import re
from base64 import b64encode
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql.types import StructType, VariantVal

from airflow_provider_taskq.queue import InvalidTask

_COLLATION = re.compile(r" collate \w+")
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def column_types(schema: StructType) -> dict[str, str]:
    """Return the Spark type of each column of a DataFrame. Names have no case, and a collated string is a string.

    Raises InvalidTask if two names differ only in their case.
    """
    names = [name.lower() for name in schema.names]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidTask(f"two columns have the name {twice[0]!r}: names that differ in case are the same")
    kinds_of = [_COLLATION.sub("", field.dataType.simpleString()) for field in schema.fields]
    return dict(zip(names, kinds_of, strict=True))


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with names in lower case, and with Arrow's plain types of texts and bytes.

    Those are no large ones, views or dictionaries.

    Spark sends large types if spark.sql.execution.arrow.useLargeVarTypes is set. Values inside of arrays, maps and
    structs keep their types: they become JSON or columns of another batch.
    """
    fields = [field.with_name(field.name.lower()).with_type(_plain(field.type)) for field in batch.schema]
    columns = [column.cast(field.type) for column, field in zip(batch.columns, fields, strict=True)]
    return pa.record_batch(columns, schema=pa.schema(fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    if kinds.is_dictionary(kind):
        return _plain(kind.value_type)
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    return pa.binary() if kinds.is_large_binary(kind) or kinds.is_binary_view(kind) else kind


def json_of(value: Any, kind: pa.DataType) -> str:
    """Encode a value of an Arrow type as JSON, as Spark's `to_json` does, but with nulls and microseconds.

    Raises TypeError or ValueError for a value that JSON does not have.
    """
    if value is None:
        return "null"
    if _is_variant(kind):
        return str(VariantVal(value["value"], value["metadata"]).toJson())
    if kinds.is_struct(kind):
        pairs = [(field.name, json_of(value[field.name], field.type)) for field in kind]
    elif kinds.is_map(kind):
        pairs = [(_key_of(key, kind.key_type), json_of(item, kind.item_type)) for key, item in value]
    elif kinds.is_nested(kind):
        return f"[{','.join(json_of(item, kind.value_type) for item in value)}]"
    else:
        return _scalar(float(str(np.float32(value))) if kinds.is_float32(kind) else value)
    return f"{{{','.join(f'{_JSON.encode(name)}:{text}' for name, text in pairs)}}}"


def _is_variant(kind: pa.DataType) -> bool:
    return kinds.is_struct(kind) and any((field.metadata or {}).get(b"variant") == b"true" for field in kind)


def _scalar(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("holds NaN or an infinity, which JSON lacks")
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, bytes):
        value = b64encode(value).decode()
    elif isinstance(value, datetime):
        text = value.isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")
        value = re.sub(r"\+00:00$", "Z", text)
    elif isinstance(value, date | time):
        value = value.isoformat()
    return _JSON.encode(value)


def _key_of(key: Any, kind: pa.DataType) -> str:
    """Return the text of a map's key, which is its JSON without the quotes of a text."""
    text = json_of(key, kind)
    return str(json.loads(text)) if text.startswith('"') else text
