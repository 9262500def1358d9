"""Push: stores all tasks or none, in the given order, and changes older ones as the insertion says."""

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self

import psycopg
import pytest
from psycopg.rows import tuple_row

from airflow_provider_taskq.queue import (
    Insertion,
    InvalidTask,
    NewTask,
    Owner,
    Pushed,
    Result,
    State,
    TaskInput,
    TaskQueue,
    UnknownTopic,
    connect,
    task_input,
)
from airflow_provider_taskq.queue.task_input import TASK_FIELDS
from tests.queue.conftest import everything, known, numbered, states, task_in

pytestmark = pytest.mark.promise("A push of many tasks stores all or none")

DISPLACING = [Insertion.SUPERSEDE, Insertion.REPLACE, Insertion.DELETE]
A, R, X = State.ACTIVE, State.READY, State.REDUNDANT
ENDED = [State.EXPIRED, State.FAILED, State.SUSPENDED, State.FILTERED, State.SUCCEEDED]
OBSOLETE = [State.RECREATED, State.REDUNDANT]

# The state of an older task after a push with each insertion. None: the push deletes the task.
BECOMES: dict[tuple[State, Insertion], State | None] = {
    **{(state, Insertion.APPEND): state for state in State},
    **{(A, insertion): A for insertion in Insertion},
    (R, Insertion.SUPERSEDE): X,
    (R, Insertion.REPLACE): X,
    (R, Insertion.DELETE): None,
    **{(state, Insertion.SUPERSEDE): state for state in ENDED + OBSOLETE},
    **{(state, Insertion.REPLACE): X for state in ENDED},
    **{(state, Insertion.REPLACE): state for state in OBSOLETE},
    **{(state, Insertion.DELETE): None for state in ENDED + OBSOLETE},
}


@pytest.mark.promise("An older task changes as the table of insertions says")
@pytest.mark.parametrize("insertion", list(Insertion))
@pytest.mark.parametrize("state", list(State))
def test_a_push_changes_an_older_task_as_its_insertion_requires(
    queue: TaskQueue, owner: Owner, state: State, insertion: Insertion
) -> None:
    older = task_in(queue, owner, state)
    queue.create_topic("other")
    others = [*queue.push("other", ["a"]), *queue.push("work", ["b"])]
    before = known(queue, older)
    [newer] = queue.push("work", ["a"], insertion)
    expected = BECOMES[state, insertion]
    after = queue.task("work", older.sequence)
    assert (after.state if after else None) is expected
    if after is not None:
        displaced = expected is not state
        assert after.descent is (state if displaced else before.descent)
        assert (after.owner, after.completed, after.attempt) == (before.owner, before.completed, before.attempt)
    assert known(queue, newer).state is State.READY
    assert len(everything(queue)) == (2 if expected is None else 3)
    assert [known(queue, other, other.topic).state for other in others] == [R, R], "of other topics and identifiers"


@pytest.mark.parametrize(
    ("insertion", "expected"),
    [
        (Insertion.APPEND, [(State.SUSPENDED, None), (R, None), (State.SUSPENDED, None)]),
        (Insertion.SUPERSEDE, [(X, State.SUSPENDED), (X, R), (State.SUSPENDED, None)]),
        (Insertion.REPLACE, [(X, State.SUSPENDED), (X, R), (State.SUSPENDED, None)]),
        (Insertion.DELETE, [(State.SUSPENDED, None)]),
    ],
)
def test_the_descent_of_a_duplicate_in_one_push_is_the_state_it_would_have_had(
    queue: TaskQueue, insertion: Insertion, expected: list[tuple[State, State | None]]
) -> None:
    queue.push("work", [NewTask("a", suspended=True), "a", NewTask("a", suspended=True)], insertion)
    assert [(info.state, info.descent) for info in everything(queue)] == expected


def test_a_push_returns_its_tasks_in_the_order_given(queue: TaskQueue) -> None:
    given = [NewTask(f"{number * 7 % 50}", {"n": number}, f"ref {number}", priority=number % 3) for number in range(50)]
    tasks = queue.push("work", given)
    assert [(task.identifier, task.payload, task.reference) for task in tasks] == [
        (new.identifier, new.payload, new.reference) for new in given
    ]
    sequences = [task.sequence for task in tasks]
    assert sequences == sorted(set(sequences))
    assert {(task.attempt, task.redelivered, task.topic) for task in tasks} == {(0, False, "work")}


def test_a_dict_has_the_fields_of_a_task(queue: TaskQueue) -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    given: list[TaskInput] = [
        {"identifier": "first", **dict.fromkeys({*TASK_FIELDS} - {"identifier"})},  # none has its default
        {"identifier": "second", "delay": 1.5, "ttl": "90s"},
        NewTask("third"),
        "fourth",
        {"identifier": "a", "payload": {"total": 12}, "reference": "r", "suspended": False, "ttl": 90, "priority": 5,
         "available_at": noon.isoformat(), "depends_on": [["work", "first"]]},
    ]  # fmt: skip
    first, second, *_, task = (known(queue, each) for each in queue.push("work", given))
    assert (first.status, first.priority, second.available_at - second.created) == ("ready", 0, timedelta(seconds=1.5))
    assert (task.identifier, task.payload, task.reference) == ("a", {"total": 12}, "r")
    assert (task.priority, task.status, task.available_at) == (5, "blocked", noon)
    assert [one.identifier for one in queue.dependencies("work", task.sequence)] == ["first"]
    assert queue.push_stream("work", iter(given[:3])).count == 3


def test_sequences_are_global_and_ascend(queue: TaskQueue) -> None:
    queue.create_topic("other")
    sequences = [queue.push(topic, ["a"])[0].sequence for topic in ("work", "other", "work", "other")]
    assert sequences == sorted(set(sequences))


def test_an_empty_push_does_nothing(queue: TaskQueue) -> None:
    assert queue.push("work", []) == []
    assert queue.push_stream("work", iter([])) == Pushed(0, None, None)
    assert states(queue) == []


@pytest.mark.promise("Every call runs in your transaction and never commits")
def test_a_push_commits_with_the_callers_own_rows(queue: TaskQueue, session: TaskQueue) -> None:
    session.conn.execute("CREATE TEMP TABLE business (id int) ON COMMIT PRESERVE ROWS")
    session.conn.execute("INSERT INTO business VALUES (1)")
    session.push("work", ["a"])
    assert states(queue) == [], "it is not committed yet"
    session.conn.commit()
    assert session.conn.execute("SELECT id FROM business").fetchall() == [(1,)]
    assert states(queue) == [("a", R)]


@pytest.mark.promise("Every call runs in your transaction and never commits")
def test_a_push_rolls_back_with_the_callers_transaction(queue: TaskQueue, session: TaskQueue) -> None:
    queue.push("work", ["old"])
    session.push("work", ["a", "old"], Insertion.REPLACE)
    session.push_stream("work", numbered(5))
    assert states(queue) == [("old", R)]
    session.conn.rollback()
    assert states(queue) == [("old", R)]


@pytest.mark.parametrize(
    "options",
    [{"row_factory": psycopg.rows.dict_row}, {"cursor_factory": psycopg.ClientCursor}],
    ids=["another row factory", "client-side cursors"],
)
def test_verbs_work_on_a_connection_with_other_options(dsn: str, queue: TaskQueue, options: dict[str, Any]) -> None:
    with psycopg.connect(dsn, autocommit=True, **options) as conn:
        other = TaskQueue(conn)
        [task] = other.push("work", [NewTask("a", {"x": 1})])
        owner = other.register("me")
        assert other.poll("work", owner) == [task]
        assert other.page("work")[0].state is A
        other.complete(owner, {task: Result.SUCCESS})
    assert states(queue) == [("a", State.SUCCEEDED)]


@pytest.fixture
def _small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes 100 tasks instead of 10,000."""
    monkeypatch.setattr(task_input, "CHUNK_TASKS", 100)


@pytest.mark.usefixtures("_small_calls")
@pytest.mark.parametrize("insertion", list(Insertion))
def test_a_push_that_takes_many_calls_does_the_same_as_one(own_dsn: str, insertion: Insertion) -> None:
    """104 tasks with duplicates on both sides of the boundary between two calls."""

    def tasks() -> Iterator[NewTask]:
        yield NewTask("first")
        yield NewTask("asleep", suspended=True)
        yield from numbered(100)
        yield NewTask("asleep")
        yield NewTask("first", {"second": True})

    with connect(own_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        for topic in ("pushed", "streamed"):
            queue.create_topic(topic)
        pushed = queue.push("pushed", tasks(), insertion)
        streamed = queue.push_stream("streamed", tasks(), insertion)
        infos, other = everything(queue, "pushed"), everything(queue, "streamed")
    assert [(info.identifier, info.state, info.descent) for info in infos] == [
        (info.identifier, info.state, info.descent) for info in other
    ]
    duplicates = [
        (info.identifier, info.state, info.descent) for info in infos if not info.identifier.startswith("task-")
    ]
    last = [("asleep", R, None), ("first", R, None)]
    early = {
        Insertion.APPEND: [("first", R, None), ("asleep", State.SUSPENDED, None)],
        Insertion.DELETE: [],
    }.get(insertion, [("first", X, R), ("asleep", X, State.SUSPENDED)])
    assert duplicates == early + last
    assert pushed == infos, "what push returns is what is stored, in input order"
    assert streamed == Pushed(104, other[0].sequence, other[-1].sequence), "of what is stored"


# A push of several calls sends them without a wait between them

MANY = 25_000  # three calls
FEW = MANY // 100  # three small calls


class RecordingCursor(psycopg.Cursor[tuple[object, ...]]):
    """A cursor that records the steps of all pushes."""

    steps: ClassVar[list[str]] = []

    def execute(self, *arguments: Any, **options: Any) -> Self:
        self.steps.append("send")
        return super().execute(*arguments, **options)

    def fetchall(self) -> list[tuple[object, ...]]:
        self.steps.append("wait")
        return super().fetchall()


@pytest.mark.promise("A push of any length needs little memory in the client")
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


@pytest.mark.promise("A push of any length needs little memory in the client")
@pytest.mark.parametrize(
    ("bad", "position"),
    [(NewTask("x" * 501), 5), (NewTask("x" * 501), 249), (NewTask("a", float("nan")), 150)],
    ids=["server, first call", "server, last call", "client"],
)
@pytest.mark.parametrize("mode", ["autocommit", "transaction", "pipeline"])
@pytest.mark.usefixtures("_small_calls")
def test_a_refused_push_of_several_calls_stores_nothing_and_leaves_the_connection_usable(
    dsn: str, queue: TaskQueue, mode: str, bad: NewTask, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = list(numbered(FEW))
    tasks[position] = bad
    with (
        connect(dsn, autocommit=mode == "autocommit") as conn,
        conn.pipeline() if mode == "pipeline" else nullcontext(),
    ):
        own = TaskQueue(conn)
        before = own.push("work", ["before"])
        with pytest.raises(InvalidTask, match=rf"position {position}\b"):
            own.push("work", tasks)
        with pytest.raises(UnknownTopic, match="missing"):
            own.push("missing", numbered(FEW))
        after = own.push("work", ["after"])
        assert conn.execute("SELECT 1").fetchone() == (1,)
        conn.commit()
    assert [task.sequence for task in everything(queue)] == [before[0].sequence, after[0].sequence]
    assert not caplog.records


@pytest.mark.promise("A push of any length needs little memory in the client")
def test_a_push_of_several_calls_works_inside_a_pipeline_of_the_caller(dsn: str, queue: TaskQueue) -> None:
    with connect(dsn) as conn, conn.pipeline():
        counted = conn.cursor(row_factory=tuple_row)
        pushed = TaskQueue(conn).push("work", numbered(MANY))
        counted.execute("SELECT count(*) FROM taskq.task_info")
        assert counted.fetchone() == (MANY,)
    queue.conn.execute("ANALYZE")
    assert [task.sequence for task in everything(queue)] == [task.sequence for task in pushed]
