"""A push of several calls sends them without a wait between them, and stays all or nothing."""

from contextlib import nullcontext
from typing import Any, ClassVar, Self

import psycopg
import pytest
from psycopg.rows import tuple_row

from airflow_provider_taskq.queue import InvalidTask, NewTask, TaskQueue, UnknownTopic, connect
from tests.queue.conftest import everything, numbered

pytestmark = [
    pytest.mark.promise("A push of many tasks stores all or none"),
    pytest.mark.promise("A push of any length needs little memory in the client"),
]

MANY = 25_000  # three calls


class RecordingCursor(psycopg.Cursor[tuple[object, ...]]):
    """A cursor that records the steps of all pushes."""

    steps: ClassVar[list[str]] = []

    def execute(self, *arguments: Any, **options: Any) -> Self:
        self.steps.append("send")
        return super().execute(*arguments, **options)

    def fetchall(self) -> list[tuple[object, ...]]:
        self.steps.append("wait")
        return super().fetchall()


def test_a_push_sends_all_its_calls_before_it_waits_for_the_first_result(dsn: str, queue: TaskQueue) -> None:
    with connect(dsn, autocommit=True, cursor_factory=RecordingCursor) as conn:
        RecordingCursor.steps.clear()
        pushed = TaskQueue(conn).push("work", numbered(MANY))
    assert RecordingCursor.steps[-6:] == ["send"] * 3 + ["wait"] * 3
    assert [task.sequence for task in pushed] == sorted({task.sequence for task in pushed})
    queue.conn.execute("ANALYZE")  # earlier statistics may tell one row, and the plan for it takes a minute
    assert [(task.sequence, task.identifier) for task in everything(queue)] == [
        (task.sequence, task.identifier) for task in pushed
    ]


@pytest.mark.parametrize(
    ("bad", "position"),
    [(NewTask("x" * 501), 5), (NewTask("x" * 501), 24_999), (NewTask("a", float("nan")), 15_000)],
    ids=["server, first call", "server, last call", "client"],
)
@pytest.mark.parametrize("mode", ["autocommit", "transaction", "pipeline"])
def test_a_refused_push_of_several_calls_stores_nothing_and_leaves_the_connection_usable(
    dsn: str, queue: TaskQueue, mode: str, bad: NewTask, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = list(numbered(MANY))
    tasks[position] = bad
    with (
        connect(dsn, autocommit=mode == "autocommit") as conn,
        conn.pipeline() if mode == "pipeline" else nullcontext(),
    ):
        own = TaskQueue(conn)
        before = own.push("work", ["before"])
        with pytest.raises(InvalidTask, match=rf"position {position}\b"):
            own.push("work", tasks)
        after = own.push("work", ["after"])
        assert conn.execute("SELECT 1").fetchone() == (1,)
        conn.commit()
    assert [task.sequence for task in everything(queue)] == [before[0].sequence, after[0].sequence]
    assert not caplog.records


def test_a_push_of_several_calls_to_an_unknown_topic_raises_that_error(
    queue: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnknownTopic, match="missing"):
        queue.push("missing", numbered(MANY))
    assert everything(queue) == []
    assert not caplog.records


def test_a_push_of_several_calls_works_inside_a_pipeline_of_the_caller(dsn: str, queue: TaskQueue) -> None:
    with connect(dsn) as conn, conn.pipeline():
        counted = conn.cursor(row_factory=tuple_row)
        pushed = TaskQueue(conn).push("work", numbered(MANY))
        counted.execute("SELECT count(*) FROM taskq.task_info")
        assert counted.fetchone() == (MANY,)
    queue.conn.execute("ANALYZE")
    assert [task.sequence for task in everything(queue)] == [task.sequence for task in pushed]
