import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

from airflow_provider_taskq.notifications import TaskQNotifier
from airflow_provider_taskq.operators import TaskQProcessOperator, TaskQPushOperator, TaskQTicksOperator
from airflow_provider_taskq.queue import Decision, InvalidTask, NewTask, Result, State, TaskQueue, UnknownTopic
from tests.airflow.conftest import context_of, executed
from tests.airflow.serialization import stored

pytestmark = [
    pytest.mark.usefixtures("airflow_connection"),
    pytest.mark.promise("An operator does what its call of the queue does, in one transaction"),
]

MARK = "marked-payload"


def rendered(operator: TaskQPushOperator) -> dict[str, Any]:
    """Return the rendered fields as Airflow stores them."""
    operator.render_template_fields(context_of())
    return dict(_serialize_rendered_fields(operator))


def test_pushes_identifiers_dicts_and_new_tasks(queue: TaskQueue) -> None:
    tasks: list[Any] = [
        "plain",
        {"identifier": "dict", "payload": {"a": 1}, "reference": "r", "delay": 60, "available_at": None},
        NewTask("object", payload=[1]),
        {"identifier": "moment", "available_at": "2013-01-01T05:15:00+00:00", "ttl": 5, "priority": 7},
    ]
    result = TaskQPushOperator(task_id="push", topic="work", tasks=tasks).execute(context_of())
    plain, one, two, moment = queue.page("work")
    assert result == {"topic": "work", "pushed": 4, "first": plain.sequence, "last": moment.sequence}
    assert [task.identifier for task in (plain, one, two, moment)] == ["plain", "dict", "object", "moment"]
    assert (one.payload, one.reference, two.payload) == ({"a": 1}, "r", [1])
    assert one.available_at > one.created + timedelta(seconds=59)
    assert (moment.available_at, moment.priority) == (datetime(2013, 1, 1, 5, 15, tzinfo=UTC), 7)


def test_a_function_of_an_operator_or_notifier_encodes_what_json_does_not_have(queue: TaskQueue) -> None:
    moment: Any = {"at": datetime(2013, 1, 1, tzinfo=UTC)}
    common: dict[str, Any] = {"topic": "work", "json_default": str}
    TaskQPushOperator(task_id="push", tasks=[NewTask("a", moment)], **common).execute(context_of())
    TaskQTicksOperator(task_id="t", prefix="t", every=60, ahead=0, payload=moment, **common).execute(context_of())
    TaskQNotifier(identifier="b", payload=moment, **common).notify(context_of())
    decided = Decision(Result.SUCCESS, moment)
    TaskQProcessOperator(task_id="p", python_callable=lambda _: decided, **common).execute(context_of())
    tasks = queue.page("work")
    assert [task.payload for task in tasks] == [{"at": "2013-01-01 00:00:00+00:00"}] * 3
    assert [task.output for task in tasks if task.state is State.SUCCEEDED] == [tasks[0].payload] * 2


def test_streams_a_generator_function_that_takes_the_context(queue: TaskQueue) -> None:
    def flights(ds: str) -> Iterator[NewTask]:
        return (NewTask(f"{ds}-{number}") for number in range(25_000))

    result = TaskQPushOperator(task_id="push", topic="work", tasks=flights).execute(context_of())
    assert result["pushed"] == 25_000
    assert queue.page("work", size=1)[0].identifier == "2013-01-01-0"


def test_pushes_with_the_insertion_and_creates_the_topic(queue: TaskQueue) -> None:
    with pytest.raises(UnknownTopic, match="new"):
        TaskQPushOperator(task_id="push", topic="new", tasks=["a"]).execute(context_of())
    for _ in range(2):
        operator = TaskQPushOperator(task_id="push", topic="new", tasks=["a"], insertion="SUPERSEDE", create_topic=True)
        operator.execute(context_of())
    assert [task.state for task in queue.page("new")] == [State.REDUNDANT, State.READY]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (["a", {"payload": 1}], "position 1: its identifier is missing"),
        ("one", "must be a list of tasks, not one str"),
        ({"identifier": "a"}, "must be a list of tasks, not one dict"),
        (lambda: None, "must be a list of tasks, not one NoneType"),
    ],
)
def test_tasks_that_cannot_be_pushed_are_named_and_nothing_is_stored(queue: TaskQueue, tasks: Any, said: str) -> None:
    with pytest.raises(InvalidTask, match=said):
        TaskQPushOperator(task_id="push", topic="work", tasks=tasks).execute(context_of())
    assert queue.page("work") == []


def test_an_iterator_is_refused_as_a_second_try_would_find_it_empty() -> None:
    with pytest.raises(TypeError, match="function"):
        TaskQPushOperator(task_id="push", topic="work", tasks=iter(["a"]))


def test_identifiers_and_dicts_in_a_list_are_templates_and_tasks_of_a_function_are_not(queue: TaskQueue) -> None:
    templates: Any = ["{{ ds }}", {"identifier": "x", "payload": {"day": "{{ ds }}"}}]
    for tasks in (templates, lambda: templates):
        executed(TaskQPushOperator(task_id="push", topic="{{ 'work' }}", tasks=tasks))
    pushed = [(task.identifier, task.payload) for task in queue.page("work")]
    assert pushed[:2] == [("2013-01-01", None), ("x", {"day": "2013-01-01"})]
    assert pushed[2:] == [("{{ ds }}", None), ("x", {"day": "{{ ds }}"})]


@pytest.mark.parametrize(
    "tasks",
    [
        [{"identifier": "N14228", "payload": {"secret": MARK}}, NewTask("N24211", payload=MARK, reference=MARK)],
        lambda: [NewTask("N14228", payload=MARK)],
        [{"payload": MARK}],
    ],
)
def test_airflow_stores_no_payloads(tasks: Any) -> None:
    with DAG("dag", schedule=None) as dag:
        operator = TaskQPushOperator(task_id="push", topic="work", tasks=tasks)
    assert MARK not in json.dumps(stored(dag))
    assert MARK not in json.dumps(rendered(operator))
    assert MARK not in repr(operator.tasks)


def test_rendered_fields_show_counts_and_identifiers() -> None:
    tasks = [NewTask(f"N{n}", payload=MARK) for n in range(99)]
    shown = rendered(TaskQPushOperator(task_id="push", topic="work", tasks=tasks))["tasks"]
    assert shown == {"count": 99, "identifiers": [f"N{n}" for n in range(10)]}


def test_an_error_in_a_template_does_not_log_payloads(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [{"identifier": "{{ missing.name }}", "payload": MARK}]
    operator = TaskQPushOperator(task_id="push", topic="work", tasks=tasks)
    with caplog.at_level(logging.DEBUG), pytest.raises(Exception, match="'missing' is undefined"):
        operator.render_template_fields(context_of())
    output = capsys.readouterr()
    logged = caplog.text + output.out + output.err
    assert "Exception rendering Jinja template" in logged
    assert MARK not in logged
