"""The log of a waiting gate: its wait, and each change of the topic's status."""

import asyncio
import logging
import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from airflow.providers.common.compat.sdk import AirflowSensorTimeout
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_taskq.hooks import TaskQConnectionError
from airflow_provider_taskq.queue import NewTask, TaskQueue, connect
from airflow_provider_taskq.queue.waits import JunctureWait, ReadyWait, StateWait, Wait
from airflow_provider_taskq.sensors import TaskQJunctureSensor, TaskQSensor, TaskQStateSensor
from airflow_provider_taskq.triggers import watcher as watching
from airflow_provider_taskq.triggers.wait_log import WaitLog
from airflow_provider_taskq.triggers.watcher import get_watcher
from demo.postgres import EmbeddedPostgres
from tests.airflow.conftest import Connect, context_of, until
from tests.roles import logged_in

pytestmark = [
    pytest.mark.usefixtures("airflow_connection"),
    pytest.mark.promise("A gate opens when its topic is ready, in every mode"),
]

NOWHERE = "host=127.0.0.1 port=1 user=x password=x dbname=x"
TRIGGER = ContextVar("TRIGGER", default="no trigger")  # like the triggerer's own context variable


class Lines(logging.Handler):
    """The logged lines, each with the trigger from whose context it was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.logger = logging.Logger("test")  # noqa: LOG001  one for each test
        self.logger.addHandler(self)
        self.texts: list[str] = []
        self.triggers: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.triggers.append(TRIGGER.get())


@pytest.fixture
def lines() -> Lines:
    return Lines()


TaskLog = Callable[[], list[str]]


@pytest.fixture
def task_log(capfd: pytest.CaptureFixture[str]) -> TaskLog:
    """Return the log lines of tasks in this process since the last call; Airflow prints them."""
    return lambda: re.findall(r"\[(?:info|warning) *\] (.*?) *\[airflow\.task\.", capfd.readouterr().out)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads the status of topics with every check."""
    monkeypatch.setattr(watching, "_STATUS_INTERVAL", 0.0)
    monkeypatch.setattr(watching, "_STATUS_REST_FACTOR", 0.0)


def waiting(wait: Wait[Any], lines: Lines, trigger: str = "mine") -> "asyncio.Task[Any]":
    """Wait in the context of a trigger."""

    async def run() -> Any:
        TRIGGER.set(trigger)
        return await get_watcher("taskq_default").wait_for(wait, WaitLog(lines.logger))

    return asyncio.create_task(run())


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("wait", "first", "later"),
    [
        (ReadyWait("work", 3), "Waits for 3 ready tasks of topic 'work'; 0 ready.", "; 1 ready, 1 scheduled."),
        (
            StateWait("work", ("a", "b"), frozenset({"SUCCEEDED"}), frozenset({"FAILED"})),
            "Waits for 2 tasks of topic 'work' to be SUCCEEDED; 0 done, 'a' has no task, 'b' has no task.",
            "; 0 done, 'a' is READY, 'b' is READY.",
        ),
        (
            JunctureWait("gate", "work", (("c",), ("d", "e"))),
            "Waits for 2 groups of suspended tasks of topic 'work'; 0 released, 2 incomplete.",
            "; 1 released, 1 incomplete.",
        ),
    ],
)
async def test_a_wait_in_the_triggerer_logs_each_change_in_the_context_of_its_trigger(
    queue: TaskQueue, lines: Lines, wait: Wait[Any], first: str, later: str
) -> None:
    task = waiting(wait, lines)
    await until(lambda: len(lines.texts) == 1)
    queue.push("work", ["a", NewTask("b", delay=timedelta(hours=1)), NewTask("c", suspended=True)])
    await until(lambda: lines.texts[-1].endswith(later))
    queue.conn.execute("SELECT set_config('taskq.actor', 'alice', false)")
    queue.pause_topic("work")
    await until(lambda: "topic paused by alice since 2" in lines.texts[-1])
    queue.resume_topic("work")
    await until(lambda: lines.texts[-1].endswith(later))
    task.cancel()
    assert lines.texts[0] == first
    assert set(lines.triggers) == {"mine"}
    assert all(before != after for before, after in zip(lines.texts, lines.texts[1:], strict=False))


@pytest.mark.slow
async def test_a_wrong_password_is_logged_with_its_reason_until_it_is_right_again(
    queue: TaskQueue, dsn: str, connect_airflow: Connect, lines: Lines
) -> None:
    with connect(dsn, autocommit=True) as admin, logged_in(admin, dsn, "consumer") as role:
        connect_airflow(dsn=role)
        user, password = (str(conninfo_to_dict(role)[name]) for name in ("user", "password"))

        def change(text: str) -> None:
            admin.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(user), text))
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (user,))

        tasks = [waiting(ReadyWait("work", number), lines, f"trigger {number}") for number in (1, 2)]
        await until(lambda: len(lines.texts) == 2)
        change("another")
        await until(lambda: sum("password authentication failed" in text for text in lines.texts) == 2)
        change(password)
        await until(lambda: lines.texts.count("Can check the gate again") == 2, 40)
        queue.push("work", ["a", "b"])
        assert [await task for task in tasks] == [1, 2]
    assert sorted(set(lines.triggers)) == ["trigger 1", "trigger 2"]
    assert [text for text in lines.texts if "another" in text or password in text] == []


@pytest.mark.own_database
async def test_a_status_that_cannot_be_read_ends_no_wait(
    queue: TaskQueue, conn: psycopg.Connection, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute("DROP FUNCTION taskq.topic_status")
    task = waiting(ReadyWait("work"), lines)
    await until(lambda: "Cannot read topic statuses: topics=1" in caplog.text)
    queue.push("work", ["a"])
    assert await task == 1
    assert lines.texts == []


SENSORS: dict[str, Callable[..., Any]] = {
    "tasks": partial(TaskQSensor, task_id="gate", topic="work", min_tasks=3),
    "states": partial(TaskQStateSensor, task_id="gate", topic="work", identifiers=["a"]),
    "junctures": partial(TaskQJunctureSensor, task_id="gate", topic="work", groups=[["a"]]),
}


def test_gates_that_poke_wait_through_a_lost_connection_and_a_changed_password(
    own_server: EmbeddedPostgres, connect_airflow: Connect, task_log: TaskLog
) -> None:
    connect_airflow(dsn=own_server.dsn)
    gates, context = [sensor() for sensor in SENSORS.values()], context_of()

    def poke_all() -> None:
        assert not any(gate.poke(context) for gate in gates)

    poke_all()
    own_server.stop()
    poke_all()
    poke_all()
    own_server.start()
    for dsn in (make_conninfo(own_server.dsn, password="wrong"), own_server.dsn):
        connect_airflow(dsn=dsn)
        poke_all()
    texts = task_log()
    lost = [text for text in texts if "Cannot check the gate, will retry" in text]
    assert len(lost) == 2 * len(gates)
    assert sum("Connection refused" in text for text in lost) == len(gates)
    assert sum("password authentication failed" in text for text in lost) == len(gates)
    assert texts.count("Can check the gate again") == len(gates)


def test_a_first_check_without_a_connection_fails(connect_airflow: Connect) -> None:
    connect_airflow(dsn=NOWHERE)
    with pytest.raises(TaskQConnectionError, match=r"cannot connect to its database: .*Connection refused"):
        SENSORS["tasks"]().poke(context_of())


@pytest.mark.usefixtures("conn")
def test_a_silent_gate_logs_an_unknown_topic_once(task_log: TaskLog) -> None:
    gate, context = SENSORS["tasks"](silent_fail=True), context_of()
    gate.poke(context)
    gate.poke(context)
    (text,) = task_log()
    assert text.startswith("Cannot check the gate, will retry: error=topic 'work' ")


@pytest.mark.parametrize("mode", [{}, {"deferrable": True}])
def test_a_timeout_names_the_wait_and_the_status_of_the_topic(queue: TaskQueue, mode: dict[str, Any]) -> None:
    queue.push("work", ["a", NewTask("b", delay=timedelta(hours=1))])
    queue.conn.execute("SELECT set_config('taskq.actor', 'alice', false)")
    queue.pause_topic("work")
    message = (
        r"not open within 0.1 seconds. Waits for 3 ready tasks of topic 'work'; 0 ready, 1 scheduled, 1 paused,"
        r" topic paused by alice since 2\d{3}-"
    )
    gate = SENSORS["tasks"](timeout=0.1, poke_interval=0.1, **mode)
    ends = gate.execute if not mode else partial(gate.resume_execution, "__fail__", {"error": "Trigger timeout"})
    with pytest.raises(AirflowSensorTimeout, match=message):
        ends(context_of())


def test_a_timeout_without_a_connection_names_the_reason(connect_airflow: Connect) -> None:
    connect_airflow(dsn=NOWHERE)
    with pytest.raises(
        AirflowSensorTimeout, match=r"seconds\. The last check failed: Airflow connection 'taskq_default' c"
    ):
        SENSORS["tasks"](deferrable=True).resume_execution("__fail__", {"error": "Trigger timeout"}, context_of())
