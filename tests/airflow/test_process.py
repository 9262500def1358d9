import multiprocessing
import os
import threading
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import DAG, task

from airflow_provider_taskq.operators import TaskQProcessOperator
from airflow_provider_taskq.queue import (
    Decision,
    InvalidArgument,
    NewTask,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
    UnknownTopic,
)
from airflow_provider_taskq.queue.owner_names import TaskInstanceName
from airflow_provider_taskq.worker import Batch, Composite, batch
from tests.airflow.conftest import context_of, executed
from tests.airflow.serialization import restored
from tests.internals import lapse_lease

pytestmark = [
    pytest.mark.usefixtures("airflow_connection", "queue"),
    pytest.mark.promise("`TaskQProcessOperator` and `@task.taskq` drain a topic through a function"),
]


def process(python_callable: Any, **arguments: Any) -> dict[str, Any]:
    given = {"task_id": "process", "topic": "work", "python_callable": python_callable, **arguments}
    result: dict[str, Any] = executed(TaskQProcessOperator(**given))
    return result


def states(queue: TaskQueue) -> list[tuple[str, State]]:
    return [(info.identifier, info.state) for info in queue.page("work")]


def test_calls_the_function_for_each_task_until_the_topic_is_empty(queue: TaskQueue) -> None:
    queue.push("work", [NewTask(name, payload={"number": place}) for place, name in enumerate("abcdefg")])
    seen: list[int] = []
    done = process(lambda each: seen.append(each.payload["number"]), size=2)
    assert seen == [0, 1, 2, 3, 4, 5, 6]
    assert done == {
        "topic": "work",
        "handled": 7,
        "succeeded": 7,
        "filtered": 0,
        "suspended": 0,
        "failed": 0,
        "undecided": 0,
    }
    assert {state for _, state in states(queue)} == {State.SUCCEEDED}


def test_a_failed_task_of_the_queue_does_not_fail_the_airflow_task(
    queue: TaskQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=2, base=timedelta(0))))
    queue.push("work", ["good", *(f"bad-{number}" for number in range(6))])

    def refuse(each: Task) -> Result | Decision:
        if each.identifier != "good":
            raise LookupError(f"nothing known of {each.identifier}")
        return Decision(Result.FILTER, "not wanted")

    counts = {"handled": 13, "succeeded": 0, "filtered": 1, "suspended": 0, "failed": 12, "undecided": 0}
    assert process(refuse, size=5) == {"topic": "work", **counts}
    good, bad, *_ = queue.page("work")
    assert (good.state, good.output) == (State.FILTERED, "not wanted")
    assert (bad.state, bad.attempt) == (State.FAILED, 2)
    assert "nothing known of bad-0" in (bad.error or "")
    log = capsys.readouterr().out
    assert "Task failed: identifier=bad-0 sequence=2 error=LookupError: nothing known of bad-0" in log
    assert log.count("error=LookupError") == 10, "the first ten"
    said = " ".join(f"{name}={number}" for name, number in counts.items())
    assert f"Drained topic: topic=work {said} failed_for_good=6 to_retry=6" in log


def deliver(each: Task) -> None:
    if each.identifier.startswith("bad"):
        raise LookupError(f"no mailbox for {each.identifier}")


def test_the_task_fails_after_the_commit_if_more_tasks_fail_than_max_failed_allows(queue: TaskQueue) -> None:
    queue.push("work", ["a", "bad-1", "b", "bad-2"])
    assert process(deliver, max_failed="{{ 2 }}")["failed"] == 2
    tasks = queue.push("work", ["c", "bad-3", "bad-4", "d"])
    with pytest.raises(AirflowFailException) as failed:
        process(deliver, max_failed=0.25)
    text = str(failed.value)
    assert "2 of 4 tasks that ended in topic 'work' failed, max_failed allows 25 % of them" in text
    assert f"bad-3 (sequence {tasks[1].sequence}): LookupError: no mailbox for bad-3" in text
    assert {name for name, state in states(queue) if state is State.SUCCEEDED} == {"a", "b", "c", "d"}
    assert process(deliver, max_failed=0)["handled"] == 0  # earlier failures are not counted again


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (
            {"success_on": "psycopg.errors.UniqueViolation"},
            TypeError,
            "invalid success_on .*: expected an exception class",
        ),
        (
            {"python_callable": batch(print), "success_on": LookupError},
            TypeError,
            r"pass success_on to each\(\) or batch",
        ),
        ({"python_callable": 3}, TypeError, "expected a function of a task"),
        ({"size": "0"}, InvalidArgument, "size"),
        ({"workers": "many"}, InvalidArgument, "workers"),
        ({"workers": 1.5}, InvalidArgument, "invalid workers 1.5"),
        ({"size": True}, InvalidArgument, "invalid size True"),
        ({"lease": "soon"}, InvalidArgument, "invalid duration 'soon'"),
        ({"lease": -5}, InvalidArgument, "invalid lease -5 s"),
        ({"limit": True}, InvalidArgument, "invalid limit True"),
        ({"topic": "nowhere"}, UnknownTopic, "nowhere"),
    ],
    ids=[
        "text",
        "batches",
        "callable",
        "size",
        "workers",
        "half a worker",
        "truth",
        "lease",
        "negative",
        "limit",
        "topic",
    ],
)
def test_an_invalid_argument_is_refused_and_no_task_is_handled(
    queue: TaskQueue, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    queue.push("work", ["a"])
    with pytest.raises(error, match=said):
        process(**{"python_callable": print, **arguments})
    assert states(queue) == [("a", State.READY)]


def test_the_failures_of_a_killed_try_count_in_the_next(queue: TaskQueue) -> None:
    queue.push("work", ["bad", "kill"])

    def deliver_one(each: Task) -> None:
        if each.identifier == "kill":
            operator.on_kill()
        deliver(each)

    operator = TaskQProcessOperator(task_id="process", topic="work", python_callable=deliver_one, size=1, max_failed=0)
    with pytest.raises(AirflowException, match="the drain of 'work' was killed"):
        operator.execute(context_of("process"))
    with pytest.raises(AirflowFailException, match="1 of 2 tasks that ended in topic 'work' failed"):
        process(deliver, max_failed=0)


def test_arguments_follow_the_task_and_named_context_values_are_passed(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    seen: list[Any] = []

    def handle(each: Task, price: int, *, currency: str, ds: str) -> None:
        seen.append((each.identifier, price, currency, ds))

    process(handle, op_args=[3], op_kwargs={"currency": "{{ ds }} EUR"})
    assert seen == [("a", 3, "2013-01-01 EUR", "2013-01-01")]


def test_a_composite_and_a_handler_of_batches_are_used_as_they_are(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b"])
    sizes: list[int] = []
    assert process(batch(lambda batch: sizes.append(len(batch.tasks))), size=2)["succeeded"] == 2
    assert sizes == [2]
    queue.push("work", ["c"])
    steps = Composite("steps")
    steps.step(name="only")(lambda _each: Result.FILTER)
    assert process(steps)["filtered"] == 1


@pytest.mark.parametrize("lapsed", [False, True])
def test_a_retry_releases_the_tasks_of_an_earlier_try_immediately(queue: TaskQueue, lapsed: bool) -> None:
    queue.push("work", ["a"])
    died = queue.register("dag/run/process/-1/a host/1", timedelta(hours=1))
    assert len(queue.poll("work", died)) == 1
    if lapsed:
        lapse_lease(queue.conn)
    assert process(print)["succeeded"] == 1
    assert queue.held(died) == []


def test_a_kill_releases_the_tasks_without_a_decision(queue: TaskQueue) -> None:
    queue.push("work", ["a"])
    started, let_go = threading.Event(), threading.Event()

    def hang(_each: Task) -> None:
        started.set()
        assert let_go.wait(120)

    operator = TaskQProcessOperator(task_id="process", topic="work", python_callable=hang)
    errors: list[BaseException] = []

    def execute() -> None:
        try:
            operator.execute(context_of("process"))
        except AirflowException as error:
            errors.append(error)

    running = threading.Thread(target=execute)
    running.start()
    try:
        assert started.wait(120)
        operator.on_kill()
        assert states(queue) == [("a", State.READY)]
    finally:
        let_go.set()
        running.join()
    assert states(queue) == [("a", State.READY)]
    assert "released the tasks without a decision" in str(errors[0])


class TestDecorator:
    def test_makes_a_function_the_handler_of_a_topic(self, queue: TaskQueue) -> None:
        queue.push("work", ["a", "b"])
        seen: list[Any] = []
        with DAG("handles", schedule=None):

            @task.taskq(topic="work", size=5)
            def handle(each: Task, batch: Batch, price: int, currency: str = "EUR") -> None:
                seen.append((each.identifier, len(batch.tasks), price, currency))

            made: Any = handle(3).operator  # type: ignore[call-arg,attr-defined,arg-type,misc]
        assert (made.task_id, made.custom_operator_name, made.topic) == ("handle", "@task.taskq", "work")
        made.render_template_fields(context_of("process"))
        assert made.execute(context_of("process"))["succeeded"] == 2
        assert seen == [("a", 2, 3, "EUR"), ("b", 2, 3, "EUR")]

    def test_accepts_the_arguments_of_the_operator(self, queue: TaskQueue) -> None:
        queue.push("work", ["a", "bad-1"])
        with DAG("handles", schedule=None) as dag:
            tolerant: Any = task.taskq(topic="work", success_on=LookupError)
            strict: Any = task.taskq(topic="work", max_failed=0)
            made, strict_one = tolerant(deliver)().operator, strict(deliver).override(task_id="strict")().operator
        assert restored(dag).task_dict["deliver"].task_type == "TaskQDecoratedOperator"
        assert made.execute(context_of("process"))["succeeded"] == 2
        queue.push("work", ["bad"])
        with pytest.raises(AirflowFailException, match="1 of 1 tasks that ended in topic 'work' failed"):
            strict_one.execute(context_of("process"))

    def test_refuses_a_call_that_does_not_match_the_function(self) -> None:
        with DAG("handles", schedule=None):

            @task.taskq(topic="work")
            def handle(each: Task, price: int) -> None: ...

            with pytest.raises(TypeError, match="price"):
                handle()  # type: ignore[call-arg,misc]


def test_its_tasks_are_held_under_names_that_lead_back_to_the_task_instance(queue: TaskQueue) -> None:
    queue.push("work", [f"{n}" for n in range(10)])
    context = context_of("process")["ti"]
    instance = TaskInstanceName(context.dag_id, context.run_id, context.task_id, context.map_index)
    seen: list[tuple[int, TaskInstanceName | None]] = []

    def record_owner(_: Task) -> None:
        held = queue.browse_held(str(instance), workers=True)
        seen.append((len(held), TaskInstanceName.parse(held[0].owner or "")))

    process(record_owner, size=10)
    assert seen == [(10, instance)] * 10


def test_sizes_and_durations_are_templates(queue: TaskQueue) -> None:
    queue.push("work", ["a", "b", "b"])
    sizes: list[int] = []

    def handle(_: Task, batch: Any) -> None:
        sizes.append(len(batch.tasks))

    operator = TaskQProcessOperator(
        task_id="process",
        topic="work",
        python_callable=handle,
        size="{{ params.size }}",
        workers="{{ params.workers }}",
        lease="{{ params.seconds }}",
        limit="{{ params.seconds }}",
        condition="SINGULAR_BY_IDENTIFIER",
    )
    context: Any = {**context_of(), "params": {"size": 1, "workers": 2, "seconds": 30}}
    assert executed(operator, context)["handled"] == 3
    assert sizes == [1, 1, 1]


def process_with_cause(size: int) -> None:
    """One try of the Airflow task, whose process ends at one task of the queue."""
    process(lambda each: os._exit(137) if each.identifier == "item-57" else None, size=size)


@pytest.mark.slow
@pytest.mark.promise("a task kills its process")
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.faults), 20])
def test_a_task_that_kills_the_process_is_failed_before_the_fifth_try(queue: TaskQueue, size: int) -> None:
    queue.push("work", [f"item-{number}" for number in range(100)])
    codes: list[int | None] = []
    while codes[-1:] != [0] and len(codes) < 5:
        tried = multiprocessing.get_context("spawn").Process(target=process_with_cause, args=(size,))
        tried.start()
        tried.join()
        codes.append(tried.exitcode)
    assert codes == [137, 137, 137, 0]
    assert [identifier for identifier, state in states(queue) if state is not State.SUCCEEDED] == ["item-57"]
    assert queue.count("work")["work"][State.FAILED].count == 1
