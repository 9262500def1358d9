"""TaskQTicksOperator: the schedules that it accepts. The rules of ticks are the queue's."""

import json
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_taskq.operators import TaskQTicksOperator
from airflow_provider_taskq.queue import NewTask, State, TaskQueue, UnknownTopic
from tests.airflow.conftest import executed
from tests.airflow.serialization import stored

MARK = "marked-payload"

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("An operator does what its call of the queue does, in one transaction"),
]


def install(**arguments: Any) -> dict[str, Any]:
    given = {"task_id": "ticks", "topic": "work", "prefix": "report", **arguments}
    done: dict[str, Any] = executed(TaskQTicksOperator(**given))
    return done


def moments(queue: TaskQueue) -> list[datetime]:
    """Return the due times of the waiting ticks."""
    return sorted(task.available_at.astimezone(UTC) for task in queue.page("work", size=1000, state=State.READY))


@pytest.mark.parametrize("every", [timedelta(minutes=15), 900, "{{ 15 * 60 }}"])
def test_installs_ticks_of_a_period_ahead(queue: TaskQueue, every: Any) -> None:
    before = datetime.now(UTC)
    result = install(every=every, ahead=timedelta(hours=2))
    found = moments(queue)
    assert result["installed"] == len(found) == 8
    assert result["last"] == found[-1].isoformat()
    assert {moment.minute % 15 for moment in found} == {0}
    assert before < found[0] <= datetime.now(UTC) + timedelta(minutes=15)


@pytest.mark.parametrize("daily", [["06:00", "18:30"], [time(18, 30), time(6)]])
def test_installs_daily_ticks_in_a_zone(queue: TaskQueue, daily: Any) -> None:
    install(daily=daily, zone="Asia/Kathmandu", ahead=2 * 86400)
    assert [(moment.hour, moment.minute) for moment in moments(queue)].count((0, 15)) == 2
    assert {(moment.hour, moment.minute) for moment in moments(queue)} == {(0, 15), (12, 45)}


def test_another_version_of_a_payload_function_replaces_the_waiting_ticks(queue: TaskQueue) -> None:
    for version, kind in ((1, "old"), (1, "other"), (2, "new")):
        install(every=3600, payload=lambda _moment, kind=kind: kind, version=version, ahead=3600)
    assert [task.payload for task in queue.page("work")] == ["new"]


def test_ticks_that_no_run_installed_are_caught_up(queue: TaskQueue) -> None:
    hour = queue.now().replace(minute=0, second=0, microsecond=0)
    hash_ = install(every=3600, ahead=3600)["config_hash"]
    queue.purge_all("work")
    queue.install_ticks("work", "report", hash_, [(hour - timedelta(hours=3), None)])
    assert install(every=3600, ahead=3600, catch_up="all")["installed"] == 4


def test_the_same_schedule_is_installed_once_and_a_changed_one_replaces_the_waiting_ticks(queue: TaskQueue) -> None:
    installed = [
        install(prefix=prefix, cron=f"0 {hour} * * *", zone="{{ 'UTC' }}", ahead=timedelta(days=5))["installed"]
        for prefix, hour in (("report", 6), ("report", 7), ("report", 7), ("other", 8))
    ]
    assert installed == [5, 5, 0, 5]
    assert [moment.hour for moment in moments(queue)].count(7) == 5
    assert {moment.hour for moment in moments(queue)} == {7, 8}


def test_a_tick_has_a_payload_or_the_result_of_a_function_of_its_time(queue: TaskQueue) -> None:
    for payload in ({"kind": "daily"}, {"kind": "hourly"}):  # a changed payload is a changed schedule
        install(every=3600, ahead=3600, payload=payload)
    install(prefix="made", every=3600, ahead=3600, payload=lambda at: NewTask("", {"hour": at.hour}, priority=7))
    plain, made = queue.page("work", state=State.READY)
    assert plain.payload == {"kind": "hourly"}
    assert (made.payload, made.priority) == ({"hour": made.available_at.astimezone(UTC).hour}, 7)


def test_airflow_stores_no_payload() -> None:
    with DAG("dag", schedule=None) as dag:
        TaskQTicksOperator(task_id="ticks", topic="work", prefix="report", every=60, payload={"secret": MARK})
    assert "report" in json.dumps(stored(dag))
    assert MARK not in json.dumps(stored(dag))


def test_creates_the_topic_if_requested(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic, match="new"):
        install(topic="new", every=60, ahead=60)
    assert install(topic="new", every=60, ahead=60, create_topic=True)["installed"] == 1
    assert queue.page("new")[0].identifier.startswith("report/")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "exactly one of every, daily and cron"),
        ({"every": 60, "cron": "* * * * *"}, "exactly one of every, daily and cron"),
        ({"daily": ["06:00"], "every": 60}, "exactly one of every, daily and cron"),
        ({"every": 0}, "invalid period"),
        ({"cron": "nonsense"}, "cron"),
    ],
)
def test_an_invalid_schedule_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        install(**arguments)
