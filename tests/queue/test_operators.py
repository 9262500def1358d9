"""What the operators' verbs leave behind, checked as in tests/queue/test_sessions.py."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_taskq.queue import Junction, NewTask, Owner, Result, Revival, State, Task, TaskQueue, connect
from tests.internals import stored_rows
from tests.queue.test_sessions import LEFT, Verb

HOUR = timedelta(hours=1)

VERBS: dict[str, Verb] = {
    "lock": lambda queue, _owner, _task: queue.lock("job", "a", HOUR, HOUR),
    "unlock": lambda queue, _owner, _task: queue.unlock("job", "a"),
    "results": lambda queue, _owner, _task: queue.results(datetime.now(UTC) - HOUR),
    "resolve": lambda queue, _owner, _task: queue.resolve(datetime.now(UTC) - HOUR),
    "resolve a preceding": lambda queue, _owner, _task: queue.resolve(datetime.now(UTC), preceding=True),
    "junction": lambda queue, _owner, _task: queue.junction("work", [["s"], ["t", "missing"]]),
    "eternal junction": lambda queue, _owner, _task: queue.junction("work", [["a", "t"]], Junction.ETERNAL),
    "reassign": lambda queue, _owner, task: queue.reassign("work", Result.FILTER, sequences=[task.sequence]),
    "reassign by state": lambda queue, _owner, _task: queue.reassign("work", Result.FAILURE, state=State.FILTERED),
    "replace": lambda queue, _owner, _task: queue.revive("work", State.SUCCEEDED, Revival.REPLACE, size=1),
    "supersede": lambda queue, _owner, _task: queue.revive("work", State.SUCCEEDED, Revival.SUPERSEDE, size=1),
    "append": lambda queue, _owner, _task: queue.revive("work", State.SUCCEEDED, Revival.APPEND, size=1),
    "reset": lambda queue, _owner, task: queue.revive("work", sequences=[task.sequence]),
    "purge": lambda queue, _owner, _task: queue.purge("work"),
    "purge_owners": lambda queue, _owner, _task: queue.purge_owners(timedelta(0)),
    "purge_all": lambda queue, _owner, _task: queue.purge_all("work"),
}
WRITING = [name for name in VERBS if not name.startswith("res") or name == "reset"]


@pytest.fixture
def ended(queue: TaskQueue, owner: Owner) -> Task:
    """One of several ended tasks, with suspended and READY ones, and an owner whose lease is gone."""
    tasks = queue.push("work", [*"abcde"])
    queue.push("work", [NewTask("s", suspended=True), NewTask("t", suspended=True)])
    queue.poll("work", owner, 4)
    queue.complete(owner, dict.fromkeys(tasks[:4], Result.SUCCESS))
    queue.release(queue.register("gone"))
    queue.lock("other job", "a", HOUR)
    return tasks[0]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_an_operators_verb_takes_one_round_trip(
    owner: Owner, session: TaskQueue, ended: Task, verb: Verb, tmp_path: Path
) -> None:
    session.conn.execute("SELECT")
    log = tmp_path / "protocol"
    with log.open("w") as file:
        session.conn.pgconn.trace(file.fileno())
        verb(session, owner, ended)
        session.conn.pgconn.untrace()
    assert log.read_text().count("ReadyForQuery") == 1


def test_operators_verbs_leave_nothing_in_the_session(owner: Owner, ended: Task, dsn: str) -> None:
    settings = "SELECT name, setting FROM pg_settings ORDER BY name"
    with connect(dsn, autocommit=True) as conn:
        conn.execute("DO 'BEGIN END'")
        before = conn.execute(settings.encode()).fetchall()
        for name, verb in VERBS.items():
            verb(TaskQueue(conn), owner, ended)
            assert conn.execute(LEFT.encode()).fetchone() == (0, 0, 0, 0, 0), name
        assert conn.execute(settings.encode()).fetchall() == before


@pytest.mark.parametrize("name", WRITING)
def test_an_operators_verb_is_undone_by_the_callers_rollback(
    queue: TaskQueue, owner: Owner, session: TaskQueue, ended: Task, name: str
) -> None:
    if name == "unlock":
        queue.lock("job", "a", HOUR)
    queue.reassign("work", Result.FILTER, sequences=[ended.sequence])
    before = stored_rows(queue.conn)
    assert VERBS[name](session, owner, ended)
    session.conn.rollback()
    assert stored_rows(queue.conn) == before
