"""Decisions are checked before they are staged."""

import struct
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_taskq.queue import InvalidTask
from airflow_provider_taskq.spark.encoding import check_decision_columns, encode_decisions

pytestmark = pytest.mark.promise("A transform may be a DataFrame, batches or a function of one task")

STAGE = bytes(range(16))


def rows(**columns: Any) -> list[list[bytes | None]]:
    """The fields of each row as they are sent."""
    given = {"sequence": pa.array([7], pa.int64()), "result": pa.array(["SUCCESS"]), **columns}
    data, place, found = encode_decisions(pa.record_batch(given), STAGE, 3, 5).to_pybytes(), 0, []
    while place < len(data):
        (fields,), place = struct.unpack_from(">h", data, place), place + 2
        row: list[bytes | None] = []
        for _ in range(fields):
            (size,), place = struct.unpack_from(">i", data, place), place + 4
            row.append(None if size < 0 else data[place : place + size])
            place += max(size, 0)
        found.append(row)
    return found


def test_a_decision_becomes_a_row() -> None:
    columns = {"message": pa.array(['{"a":"x,\\"y"}']), "error": pa.array(["no\nluck"])}
    numbers = [STAGE, struct.pack(">i", 3), struct.pack(">q", 5), struct.pack(">q", 7), struct.pack(">h", 3)]
    assert rows(**columns) == [[*numbers, b'{"a":"x,\\"y"}', b"no\nluck", None]]


@pytest.mark.parametrize(("name", "number"), [("FAILURE", 0), ("SUSPENSION", 1), ("FILTER", 2), ("SUCCESS", 3)])
def test_a_result_is_a_name_or_a_number(name: str, number: int) -> None:
    assert rows(result=pa.array([name]))[0][4] == rows(result=pa.array([number]))[0][4] == struct.pack(">h", number)


NO_RESULT = "unknown result {}.* of the decision on task 7: use FAILURE, SUSPENSION, FILTER, SUCCESS"
SUSPENSION = pa.array(["SUSPENSION"])


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"result": pa.array(["DONE"])}, NO_RESULT.format("'DONE'")),
        ({"result": pa.array(["success"])}, NO_RESULT.format("'success'")),
        ({"result": pa.array([4])}, NO_RESULT.format("4")),
        ({"result": pa.array([-1])}, NO_RESULT.format("-1")),
        ({"result": pa.array([None], pa.string())}, NO_RESULT.format("null")),
        ({"result": pa.array(["x" * 99])}, NO_RESULT.format("'xxxxx")),
        ({"sequence": pa.array([None], pa.int64())}, "a decision has no sequence"),
        ({"message": pa.array(["{oops"])}, "the message of the decision on task 7 is not JSON"),
        ({"message": pa.array([""])}, "task 7 is not JSON"),
        ({"message": pa.array(['{"a":NaN}'])}, "NaN is not a JSON number"),
        ({"message": pa.array(["[" * 100_000])}, "task 7 is not JSON"),
        ({"message": pa.array(['"\\u0000"'])}, "task 7 holds a NUL or a lone surrogate"),
        ({"message": pa.array(['{"\\ud800":1}'])}, "task 7 holds a NUL or a lone surrogate"),
        ({"message": pa.array(['"a\\\\\\u0000"'])}, "task 7 holds a NUL or a lone surrogate"),
        ({"error": pa.array(["a\x00b"])}, "the error of the decision on task 7 holds a NUL"),
        ({"delay": pa.array([1])}, "task 7 has a delay: only a SUSPENSION takes one"),
        ({"result": SUSPENSION, "delay": pa.array([float("nan")])}, "invalid delay of the decision on task 7"),
        ({"result": SUSPENSION, "delay": pa.array([float("inf")])}, "invalid delay of the decision on task 7"),
        ({"result": SUSPENSION, "delay": pa.array([1e300])}, "invalid delay of the decision on task 7"),
    ],
)
def test_an_invalid_decision_is_named_and_not_quoted(columns: dict[str, pa.Array], sentence: str) -> None:
    with pytest.raises(InvalidTask, match=sentence) as refused:
        rows(**columns)
    assert "oops" not in str(refused.value)


@pytest.mark.parametrize("message", ["null", "0", '"\\\\u0000"', '"\\u00e4\\ud83d\\ude00"', '{"a":[1,{}]}', None])
def test_a_valid_message_is_not_changed(message: str | None) -> None:
    assert rows(message=pa.array([message], pa.string()))[0][5] == (None if message is None else message.encode())


def test_an_error_keeps_its_end() -> None:
    assert rows(error=pa.array(["x" * 20_000 + "cause"]))[0][6] == b"x" * 9_995 + b"cause"


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_delay_is_an_interval_or_seconds(delay: object) -> None:
    assert rows(result=SUSPENSION, delay=pa.array([delay]))[0][7] == struct.pack(">qii", 90_000_000, 0, 0)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"sequence": "bigint"}, "decisions need a column result: these have sequence"),
        ({}, "decisions need a column sequence: these have none"),
        ({"sequence": "bigint", "result": "string", "note": "string"}, "unknown column 'note' in the decisions"),
        ({"sequence": "string", "result": "string"}, "column sequence of the decisions is string, not bigint or int"),
        (
            {"sequence": "bigint", "result": "string", "message": "struct<a:int>"},
            "column message of the decisions is struct<a:int>",
        ),
    ],
)
def test_columns_are_checked_by_name_and_type(columns: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidTask, match=sentence):
        check_decision_columns(columns)
