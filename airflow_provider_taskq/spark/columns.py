"""The columns of a DataFrame as Spark and Arrow hold them: their names and types, and their values as JSON."""

import json
import re
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql.types import StructType

_COLLATION = re.compile(r" collate \w+")
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def column_types(schema: StructType) -> dict[str, str]:
    """Return the Spark type of each column of a DataFrame. A collated string is a string."""
    return {field.name: _COLLATION.sub("", field.dataType.simpleString()) for field in schema.fields}


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose texts and bytes have Arrow's plain types: no large ones, views or dictionaries.

    Spark sends large types if spark.sql.execution.arrow.useLargeVarTypes is set. Values inside of arrays, maps and
    structs keep their types: they become JSON or columns of another batch.
    """
    columns = [column.cast(_plain(column.type)) for column in batch.columns]
    return pa.record_batch(columns, names=batch.schema.names)


def _plain(kind: pa.DataType) -> pa.DataType:
    if kinds.is_dictionary(kind):
        return _plain(kind.value_type)
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    return pa.binary() if kinds.is_large_binary(kind) or kinds.is_binary_view(kind) else kind


def json_of(value: Any, kind: pa.DataType) -> str:
    """Encode a value of an Arrow type as JSON: dates and times in ISO 8601, durations in seconds.

    Raises TypeError or ValueError for a value that JSON does not have.
    """
    if value is None:
        return "null"
    if kinds.is_struct(kind):
        pairs = [(field.name, json_of(value[field.name], field.type)) for field in kind]
    elif kinds.is_map(kind):
        pairs = [(_key_of(key, kind.key_type), json_of(item, kind.item_type)) for key, item in value]
    elif kinds.is_nested(kind):
        return f"[{','.join(json_of(item, kind.value_type) for item in value)}]"
    elif isinstance(value, timedelta):
        return _JSON.encode(value.total_seconds())
    else:
        return _JSON.encode(value.isoformat() if isinstance(value, date) else value)
    return f"{{{','.join(f'{_JSON.encode(name)}:{text}' for name, text in pairs)}}}"


def _key_of(key: Any, kind: pa.DataType) -> str:
    """Return the text of a map's key, which is its JSON without the quotes of a text."""
    text = json_of(key, kind)
    return str(json.loads(text)) if text.startswith('"') else text
