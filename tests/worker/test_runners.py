"""Handlers in every runner: the parameters that it supplies, and the meaning of what they return or raise."""

import json
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskq.consumer import Consumer, ConsumerConfig, ConsumerGroup
from airflow_provider_taskq.queue import (
    Decision,
    InvalidArgument,
    NewTask,
    Result,
    RetryPolicy,
    Task,
    TaskQueue,
    TopicPolicy,
)
from airflow_provider_taskq.worker import (
    UNDECIDED,
    BatchContext,
    Composite,
    Groups,
    TaskResultException,
    Worker,
    batch,
    each,
)
from airflow_provider_taskq.worker.handlers import HandlerFunction

pytestmark = [
    pytest.mark.promise("A handler gets its task, and by name what its runner supplies"),
    pytest.mark.promise("A handler is a function, a coroutine or an object, in threads or in processes"),
]

OWN = "own"  # the default of every parameter that a runner may supply
NAMES = ("batch", "queue", "options")
Handler = Callable[..., Any]
SLOW = pytest.mark.slow


@dataclass(frozen=True)
class Place:
    """Where a runner runs: the database, and the fixtures of the test."""

    dsn: str
    request: pytest.FixtureRequest
    max_undecided: int | None = 0

    def drain(self, transform: Any, rounds: int | None = 1) -> None:
        """Drains the topic with the shared Spark session."""
        from airflow_provider_taskq.spark import drain

        spark = self.request.getfixturevalue("spark")
        options = {"note": "given"}
        limit = self.max_undecided
        drain(spark, "work", "me", transform, dsn=self.dsn, options=options, max_undecided=limit, rounds=rounds)

    def drain_in_airflow(self, make: Callable[[Handler], Any], handler: Handler) -> None:
        """Drains the topic with an operator."""
        from tests.airflow.conftest import connection_json, context_of

        patch = self.request.getfixturevalue("monkeypatch")
        patch.setenv("AIRFLOW_CONN_TASKQ_DEFAULT", connection_json(self.dsn))
        make(handler).execute(context_of("process"))


@dataclass(frozen=True)
class Runner:
    """How a runner gets a handler and runs until the topic is empty, and what it supplies."""

    supplies: frozenset[str]
    run: Callable[[Place, Handler], object]
    kind: str = "task"  # what the first argument is


def work(place: Place, handler: Any) -> None:
    Worker(place.dsn, "work", handler, size=20, pause=timedelta(hours=1)).drain(max_undecided=place.max_undecided)


def work_in_threads(place: Place, handler: Handler) -> None:
    with ThreadPoolExecutor(2) as pool:
        work(place, each(handler, executor=pool))


def work_in_groups(place: Place, handler: Handler) -> None:
    worker = Worker(place.dsn, "work", handler, groups=Groups(), pause=timedelta(hours=1))
    worker.drain(max_undecided=place.max_undecided)


def consume(place: Place, handler: Handler, *, transactional: bool) -> None:
    from tests.consumer.consumers import read_all

    group = ConsumerGroup("readers")
    group.on()(handler)
    config = ConsumerConfig(transactional=transactional)
    read_all(place.request.getfixturevalue("queue"), Consumer(place.dsn, group, "work", config))


def operate(place: Place, handler: Handler) -> None:
    from airflow_provider_taskq.operators import TaskQProcessOperator

    def make(function: Handler) -> Any:
        limit = place.max_undecided
        return TaskQProcessOperator(task_id="process", topic="work", python_callable=function, max_undecided=limit)

    place.drain_in_airflow(make, handler)


def decorate(place: Place, handler: Handler) -> None:
    from airflow.sdk import DAG, task

    def make(function: Handler) -> Any:
        with DAG("handles", schedule=None):
            decorated: Any = task.taskq(topic="work", max_undecided=place.max_undecided)(function)
            return decorated().operator

    place.drain_in_airflow(make, handler)


def on_spark(name: str, place: Place, handler: Handler) -> None:
    from airflow_provider_taskq import spark

    place.drain(getattr(spark, name)(handler))


BATCH, QUEUE, NONE = frozenset({"batch"}), frozenset({"batch", "queue"}), frozenset[str]()
OPTIONS = frozenset({"batch", "options"})
RUNNERS: Mapping[str, Runner] = {
    "worker": Runner(BATCH, work),
    "each in threads": Runner(BATCH, lambda place, handler: work(place, each(handler, threads=2))),
    "each in an executor": Runner(BATCH, work_in_threads),
    "each in processes": Runner(BATCH, lambda place, handler: work(place, each(handler, processes=1)), "process"),
    "coroutine": Runner(BATCH, work, "coroutine"),
    "batch": Runner(NONE, lambda place, handler: work(place, batch(handler))),
    "step": Runner(BATCH, lambda place, handler: work(place, Composite("one").with_step(handler))),
    "coroutine step": Runner(
        BATCH, lambda place, handler: work(place, Composite("one").with_step(handler)), "coroutine"
    ),
    "batch step": Runner(BATCH, lambda place, handler: work(place, Composite("one").with_step(handler, mode="BATCH"))),
    "groups": Runner(BATCH, work_in_groups),
    "consumer": Runner(BATCH, partial(consume, transactional=False)),
    "transactional consumer": Runner(QUEUE, partial(consume, transactional=True)),
    "operator": Runner(BATCH, operate),
    "decorator": Runner(BATCH, decorate),
    "Spark by task": Runner(OPTIONS, partial(on_spark, "by_task")),
    "Spark in Arrow": Runner(OPTIONS, partial(on_spark, "in_arrow"), "Arrow"),
    "Spark in pandas": Runner(OPTIONS, partial(on_spark, "in_pandas"), "pandas"),
    "Spark transform": Runner(OPTIONS, lambda place, handler: place.drain(handler), "DataFrame"),
    "Spark step": Runner(BATCH, lambda place, handler: place.drain(Composite("one").with_step(handler))),
}
ALL = [pytest.param(each, marks=SLOW if "Spark" in name else (), id=name) for name, each in RUNNERS.items()]


@pytest.fixture
def place(dsn: str, queue: TaskQueue, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The topic with one task."""
    queue.push("work", ["a"])
    notes = request.getfixturevalue("tmp_path") / "notes"
    monkeypatch.setenv("TASKQ_TEST_NOTES", str(notes))
    return Place(dsn, request)


def note(path: str, **given: object) -> None:
    """Notes what a handler got: own defaults as they are, supplied values by their types."""
    noted = {name: value if value in (OWN, 100) else type(value).__name__ for name, value in given.items()}
    if isinstance(given["batch"], BatchContext):
        owner = given["batch"].owner
        noted["batch"] = f"batch of {type(owner.name).__name__} with fence {owner.fence > 0}"
    with Path(path).open("a") as file:
        file.write(json.dumps(noted) + "\n")


def handle_in_process(_: Task, limit: int = 100, batch: Any = OWN, *, queue: Any = OWN, options: Any = OWN) -> Result:
    """A handler that a child process finds by its name."""
    note(os.environ["TASKQ_TEST_NOTES"], limit=limit, batch=batch, queue=queue, options=options)
    return Result.SUCCESS


def handler_of_kind(kind: str, path: str) -> Handler:
    """A handler with one parameter that each runner leaves alone, and one for each name that a runner supplies."""

    def handle(_: Any, limit: int = 100, batch: Any = OWN, *, queue: Any = OWN, options: Any = OWN) -> Result:
        note(path, limit=limit, batch=batch, queue=queue, options=options)
        return Result.SUCCESS

    async def wait(_: Any, limit: int = 100, batch: Any = OWN, *, queue: Any = OWN, options: Any = OWN) -> Result:
        return handle(_, limit, batch, queue=queue, options=options)

    def transform(tasks: Any, limit: int = 100, batch: Any = OWN, *, queue: Any = OWN, options: Any = OWN) -> Any:
        handle(tasks, limit, batch, queue=queue, options=options)
        return tasks.selectExpr("sequence", "'SUCCESS' AS result")

    def arrow(
        batches: Any, limit: int = 100, batch: Any = OWN, *, queue: Any = OWN, options: Any = OWN
    ) -> Iterator[Any]:
        import pyarrow as pa

        for some in batches:
            handle(some, limit, batch, queue=queue, options=options)
            results = pa.array(["SUCCESS"] * some.num_rows)
            yield pa.record_batch([some.column("sequence"), results], names=["sequence", "result"])

    def pandas(
        frames: Any, limit: int = 100, batch: Any = OWN, *, queue: Any = OWN, options: Any = OWN
    ) -> Iterator[Any]:
        for frame in frames:
            handle(frame, limit, batch, queue=queue, options=options)
            yield frame[["sequence"]].assign(result="SUCCESS")

    kinds = {"task": handle, "process": handle_in_process, "coroutine": wait, "DataFrame": transform}
    return {**kinds, "Arrow": arrow, "pandas": pandas}[kind]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("runner", ALL)
def test_a_runner_supplies_its_values_by_name_and_leaves_other_defaults_alone(
    place: Place, queue: TaskQueue, tmp_path: Path, runner: Runner
) -> None:
    path = tmp_path / "notes"
    runner.run(place, handler_of_kind(runner.kind, str(path)))
    (noted,) = {*path.read_text().splitlines()}
    types = {"batch": "batch of str with fence True", "queue": "TaskQueue", "options": "dict"}
    assert json.loads(noted) == {
        "limit": 100,
        **{name: types[name] if name in runner.supplies else OWN for name in NAMES},
    }
    ended = "READY" if queue.partition_states() else "SUCCEEDED"  # a consumer ends no task
    assert [task.state.name for task in queue.page("work")] == [ended]


def wants_more(_: Any, more: Any) -> None:
    """No runner supplies the second parameter."""


def wants_batch(_: Any, batch: Any) -> None:
    """Some runners supply the second parameter."""


def wants_queue(_: Any, *, queue: Any) -> None:
    """Some runners supply the second parameter."""


def wants_options(_: Any, options: Any) -> None:
    """Some runners supply the second parameter."""


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("runner", ALL)
def test_a_parameter_that_a_runner_cannot_supply_is_refused_before_a_task_is_touched(
    place: Place, queue: TaskQueue, runner: Runner
) -> None:
    handlers: dict[str, Handler] = {
        "more": wants_more,
        "batch": wants_batch,
        "queue": wants_queue,
        "options": wants_options,
    }
    for name in sorted(handlers.keys() - runner.supplies):
        with pytest.raises((InvalidArgument, TypeError), match=f"'{name}'"):
            runner.run(place, handlers[name])
    [task] = queue.page("work")
    assert (task.state.name, task.attempt) == ("READY", 0)


def complete(future: "Future[Any]", name: str) -> None:
    """Completes a Future, in another thread."""
    try:
        future.set_result(outcome_of(name))
    except Exception as error:  # noqa: BLE001 -- whatever the handler raises
        future.set_exception(error)


def outcome_of(name: str) -> Any:
    """What a handler returns. Raises what it raises."""
    if name in RETURNED:
        return RETURNED[name]
    error = RAISED[name]()
    raise error


def decide(task: Task) -> Any:
    """Returns or raises what the identifier of a task names."""
    name = task.identifier
    if not name.startswith("future "):
        return outcome_of(name) if name in {**RETURNED, **RAISED} else Result.SUCCESS
    future: Future[Any] = Future()
    threading.Thread(target=complete, args=(future, name.removeprefix("future "))).start()
    return future


async def decide_later(task: Task) -> Any:
    """The same in a coroutine."""
    return decide(task)


RETURNED: dict[str, Any] = {
    "nothing": None,
    "result": Result.FILTER,
    "decision": Decision(Result.SUSPENSION, {"why": 1}),
    "snooze": Decision(Result.SUSPENSION, delay=timedelta(0)),
    "name": "filter",
    "undecided": UNDECIDED,
    "no decision": 5,
    "true": True,
    "a dict": {"result": "SUCCESS"},
    "no name": "done",
    "no JSON": Decision(Result.SUCCESS, float("nan")),
}
RAISED: dict[str, Callable[[], BaseException]] = {
    "error": lambda: LookupError("no mailbox"),
    "exit": lambda: SystemExit("enough"),
    "raised result": lambda: TaskResultException(Result.FILTER, message="later"),
}
# What becomes of the task in a topic with retries: its state, its output, and a part of its error.
MEANINGS = {
    "nothing": ("SUCCEEDED", None, ""),
    "result": ("FILTERED", None, ""),
    "decision": ("SUSPENDED", {"why": 1}, ""),
    "name": ("FILTERED", None, ""),
    "undecided": ("READY", None, ""),
    "no decision": ("FAILED", None, "a handler returned a int: expected a Decision"),
    "true": ("FAILED", None, "a handler returned a bool: expected a Decision"),
    "a dict": ("FAILED", None, "a handler returned a dict: expected a Decision"),
    "no name": ("FAILED", None, "a handler returned 'done': expected a Decision"),
    "no JSON": ("READY", None, "JSON"),
    "error": ("READY", None, "LookupError: no mailbox"),
    "exit": ("READY", None, "enough"),
    "raised result": ("FILTERED", "later", ""),
    "future result": ("FILTERED", None, ""),
    "future decision": ("SUSPENDED", {"why": 1}, ""),
    "future error": ("READY", None, "LookupError: no mailbox"),
    "future undecided": ("READY", None, ""),
    "future raised result": ("FILTERED", "later", ""),
    "future no decision": ("FAILED", None, "a Decision"),
}
NO_DECISIONS = {"batch", "batch step", "consumer", "transactional consumer"}
NO_DECISIONS |= {"Spark in Arrow", "Spark in pandas", "Spark transform"}  # return rows
DECIDING = [each for each in ALL if each.id not in NO_DECISIONS]


@pytest.mark.promise("What a handler returns or raises means the same in every runner")
@pytest.mark.parametrize("runner", DECIDING)
def test_what_a_handler_returns_or_raises_means_the_same_in_every_runner(
    place: Place, queue: TaskQueue, runner: Runner
) -> None:
    awaited = runner.kind == "coroutine"
    names = [name for name in MEANINGS if not (awaited and name.startswith("future"))]
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=2, base=timedelta(hours=1))))
    queue.push("work", names)
    runner.run(replace(place, max_undecided=None), decide_later if awaited else decide)
    ended = [info for info in queue.page("work") if info.identifier in MEANINGS]
    assert {info.identifier: (info.state.name, info.output) for info in ended} == {
        name: MEANINGS[name][:2] for name in names
    }
    assert [info.identifier for info in ended if MEANINGS[info.identifier][2] not in (info.error or "")] == []
    assert {info.identifier: info.attempt for info in ended if "undecided" in info.identifier} == {
        name: 0 for name in names if "undecided" in name
    }


@pytest.mark.promise("A drain that ends with undecided tasks says so, and fails if max_undecided is exceeded")
@pytest.mark.parametrize("runner", DECIDING)
def test_a_drain_with_an_undecided_task_fails_unless_max_undecided_allows_it(
    place: Place, queue: TaskQueue, runner: Runner
) -> None:
    queue.push("work", ["undecided"])
    handler = decide_later if runner.kind == "coroutine" else decide
    with pytest.raises(Exception, match="1 tasks of topic 'work' are undecided, max_undecided allows 0"):
        runner.run(place, handler)
    assert queue.ready("work", 10) == 1
    runner.run(replace(place, max_undecided=1), handler)
    assert [info.state.name for info in queue.page("work")] == ["SUCCEEDED", "READY"]


@pytest.mark.promise("A drain tries a task that comes back at once no more than once")
@pytest.mark.parametrize("runner", DECIDING)
def test_a_drain_tries_a_task_once_that_comes_back_at_once(
    place: Place, queue: TaskQueue, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "Spark" in str(place.request.node.name):
        monkeypatch.setattr(Place, "drain", partialmethod(Place.drain, rounds=None))
    queue.push("work", ["snooze", *(NewTask(name, ttl=timedelta(hours=1)) for name in ("error", "true")), "result"])
    runner.run(place, decide_later if runner.kind == "coroutine" else decide)
    ended = {info.identifier: (info.state.name, info.attempt) for info in queue.page("work")}
    back = {"snooze": ("READY", 0), "error": ("READY", 0)}
    assert ended == {"a": ("SUCCEEDED", 1), **back, "true": ("FAILED", 1), "result": ("FILTERED", 1)}


def test_the_refusal_names_the_runner_the_function_the_parameter_and_what_may_be_asked_for(dsn: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Worker(dsn, "work", wants_more)
    assert str(refused.value) == (
        "a worker calls wants_more with the task, and has no value for its parameter 'more': "
        "a parameter after the first one is named batch, or has a default"
    )


TASK = Task(1, "work", "a", None, None, 1, False)


class Callables:
    """Functions in other forms than `def`."""

    def method(self, task: Task, batch: Any) -> tuple[Any, ...]:
        return (task, batch)

    def __call__(self, task: Task, *, batch: Any) -> tuple[Any, ...]:
        return (task, batch)

    @staticmethod
    def static(task: Task, batch: Any, /) -> tuple[Any, ...]:
        return (task, batch)


def gather(task: Task, limit: int, batch: Any = None, *rest: Any, **named: Any) -> tuple[Any, ...]:
    return (task, limit, batch, rest, named)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Callables().method, ("task", "given")),
        (Callables(), ("task", "given")),
        (Callables.static, ("task", "given")),
        (partial(gather, limit=5), ("task", 5, "given", (), {})),
        (partial(gather, limit=5, batch="bound"), ("task", 5, "bound", (), {})),
        (partial(gather, TASK), (TASK, "task", "given", (), {})),
        (lambda *arguments: arguments, ("task",)),
        (str.upper, "TASK"),
        (operator.itemgetter(0), "t"),
    ],
    ids=lambda each: getattr(each, "__qualname__", type(each).__name__),
)
def test_methods_partials_callable_objects_and_functions_of_c_get_what_they_ask_for(
    function: Handler, expected: object
) -> None:
    assert HandlerFunction.of(function, "a worker", ("batch",))("task", batch="given") == expected


def test_a_function_that_takes_no_argument_and_an_object_that_is_no_function_are_refused() -> None:
    for function in (lambda: None, lambda *, task: task):
        with pytest.raises(InvalidArgument, match="takes no positional argument"):
            HandlerFunction.of(function, "a worker", ("batch",))
    with pytest.raises(InvalidArgument, match="a worker needs a function of the task, not a int"):
        HandlerFunction.of(7, "a worker", ("batch",))  # type: ignore[arg-type]
