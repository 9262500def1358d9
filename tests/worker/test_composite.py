"""Composites in one process: the definition of steps, batches in flight, and executors of the caller.

What both engines do with the outcomes of steps is in test_engines.py.
"""

import asyncio
import gc
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from types import CoroutineType
from typing import Any

import pytest

from airflow_provider_taskq.queue import Decision, InvalidArgument, NewTask, Result, Task
from airflow_provider_taskq.worker.batches import Batch
from airflow_provider_taskq.worker.composite import Composite
from airflow_provider_taskq.worker.composite_run import StepMode
from airflow_provider_taskq.worker.handlers import ForeignDecision, WorkHandler, handle_batch
from tests.queue.conftest import until

pytestmark = pytest.mark.promise("A composite gives the same results in threads and as a Spark plan")

SECONDS = 60  # the timeout for an event
FAILURE, SUSPENSION, FILTER, SUCCESS = Result
BAGGAGE: ContextVar[str] = ContextVar("baggage")


def task(number: int) -> Task:
    return Task(number, "work", f"item-{number}", {"number": number}, None, 1, False)


def batch_of(count: int) -> Batch:
    return Batch(task(number) for number in range(count))


def results(composite: Composite, count: int = 4) -> list[Result]:
    return [decision.result for decision in decisions(composite, count)]


def decisions(composite: Composite, count: int = 4) -> list[Decision]:
    batch = batch_of(count)
    decided = handle_batch(composite, batch)
    composite.close()
    assert list(decided) == list(batch.tasks)
    return list(decided.values())


def even(outcome: object) -> Callable[[Task], Any]:
    """A step that returns this outcome for tasks of even numbers, and None for others."""
    return lambda task: None if task.sequence % 2 else outcome


class Seen:
    """A step that records its tasks."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, task: Task) -> None:
        self.numbers.append(task.sequence)


# Definition


def test_a_step_has_the_name_of_its_function_and_comes_after_named_steps() -> None:
    composite = Composite("orders")

    @composite.step()
    def load(task: Task) -> None: ...

    @composite.step(after=load)
    def check(task: Task) -> None: ...

    @composite.step(name="report", after=["load", check, check], mode="BATCH")
    def send(tasks: Sequence[Task]) -> None: ...

    named = [(step.name, step.after, step.mode) for step in composite.steps]
    assert named[:2] == [("load", (), StepMode.PARALLEL), ("check", ("load",), StepMode.PARALLEL)]
    assert named[2] == ("report", ("load", "check"), StepMode.BATCH)
    assert load(task(1)) is None  # the decorator returns the function itself
    assert isinstance(composite, WorkHandler)


def test_with_step_returns_another_composite_and_leaves_the_first_as_it_was() -> None:
    one = Composite("orders").with_step(even(FILTER), name="first")
    two = one.with_step(len, name="second", after="first", mode="BATCH")
    assert [[step.name for step in each.steps] for each in (one, two)] == [["first"], ["first", "second"]]
    assert results(one) == [FILTER, SUCCESS, FILTER, SUCCESS]
    assert results(one.with_step(even(FAILURE), name="third")) == [FAILURE, SUCCESS, FAILURE, SUCCESS]


LOADED = Composite("orders").with_step(even(None), name="load")
TWICE = LOADED.with_step(task, name="a").with_step(task, name="b")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LOADED.with_step(len, name="check", after="lod"), "no step 'lod' for `after`; its steps: load"),
        (lambda: LOADED.with_step(len, after=task), "has no step 'task' for `after`"),
        (lambda: Composite("orders").with_step(len, name="load", after="load"), "its steps: none"),  # so no cycles
        (lambda: LOADED.with_step(len, name="load", mode="BATCH"), "has a step 'load' already"),
        (lambda: TWICE.with_step(len, after=task), "'task' names several steps; give a step name"),
        (lambda: Composite("orders").handle(batch_of(1)), "'orders' has no steps"),
        (lambda: Composite("orders").with_step(7, name="seven"), "needs a function of the task, not a int"),  # type: ignore[arg-type]
    ],
    ids=[
        "unknown",
        "unknown function",
        "itself",
        "name twice",
        "ambiguous",
        "no steps",
        "no function",
    ],
)
def test_an_invalid_composite_raises_when_it_is_made(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make()


def test_a_running_composite_takes_no_more_steps_until_it_is_closed_and_pickles_as_its_definition() -> None:
    composite = Composite("orders", threads=3).with_step(even(None), name="load")
    composite.handle(batch_of(1))
    with pytest.raises(InvalidArgument, match="'orders' has started and cannot be changed"):
        composite.step()(len)
    composite.close()
    composite.step(name="more")(even(FILTER))
    assert results(composite, 1) == [FILTER]
    running = Composite("orders").with_step(task, name="load").with_step(batch_of, after="load", mode="BATCH")
    running.handle(batch_of(1))
    assert pickle.loads(pickle.dumps(running)).steps == running.steps  # noqa: S301 -- our own
    running.close()


# Steps


def test_a_slow_step_delays_only_steps_that_come_after_it() -> None:
    composite, passed, order = Composite("two lanes"), threading.Event(), list[str]()

    @composite.step(mode="BATCH")
    def slow(_: Sequence[Task]) -> None:
        assert passed.wait(SECONDS)
        order.append("slow")

    @composite.step(mode="BATCH")
    def quick(_: Sequence[Task]) -> None: ...

    @composite.step(after=quick, mode="BATCH")
    def next_to_quick(_: Sequence[Task]) -> None:
        order.append("next")
        passed.set()

    @composite.step(after=(slow, next_to_quick), mode="BATCH")
    def last(_: Sequence[Task]) -> None:
        order.append("last")

    assert results(composite, 1) == [SUCCESS]
    assert order == ["next", "slow", "last"]


def test_tasks_of_a_parallel_step_run_at_once_and_those_of_a_sequential_one_in_their_order() -> None:
    met = threading.Barrier(4)
    parallel = Composite("parallel", threads=4).with_step(lambda _: [met.wait(SECONDS)].clear(), name="meet")
    assert results(parallel, 4) == [SUCCESS] * 4
    seen, turns = Seen(), list[str]()

    async def turn(task: Task) -> None:
        turns.append(f"start {task.sequence}")
        await asyncio.sleep(0)
        turns.append(f"end {task.sequence}")

    composite = Composite("one by one").with_step(seen, mode=StepMode.SEQUENTIAL)
    assert results(composite.with_step(turn, mode=StepMode.SEQUENTIAL), 50) == [SUCCESS] * 50
    assert seen.numbers == list(range(50))
    assert turns == [f"{what} {number}" for number in range(50) for what in ("start", "end")]


def test_a_parallel_coroutine_step_awaits_all_tasks_at_once() -> None:
    """Also on the event loop that all batches share, so that they can share a client."""
    composite, met, loops = Composite("awaited"), list[asyncio.Barrier](), set[int]()

    @composite.step()
    async def meet(task: Task, batch: Batch) -> Result:
        barrier = batch.suggest(asyncio.Barrier, lambda: asyncio.Barrier(len(batch.tasks)))
        async with asyncio.timeout(SECONDS):
            await barrier.wait()
        met.append(barrier)
        loops.add(id(asyncio.get_running_loop()))
        if task.sequence == 1:
            raise ValueError("one only")
        return FILTER if task.sequence else SUCCESS

    @composite.step(after=meet, mode="BATCH")
    async def all_of_them(tasks: Sequence[Task]) -> Mapping[Task, Result]:
        await asyncio.sleep(0)
        return dict.fromkeys(tasks, SUSPENSION)

    composite.handle(batch_of(4))
    assert results(composite) == [SUSPENSION, FAILURE, FILTER, FILTER]
    assert (len(met), len(loops)) == (8, 1)


def test_a_step_that_no_task_enters_is_not_called_and_the_results_pass_through() -> None:
    seen = Seen()
    composite = Composite("chain").with_step(lambda _: FILTER, name="foo", mode="BATCH")
    composite = composite.with_step(seen, name="bar", after="foo").with_step(seen, name="qux", after="bar")
    assert results(composite) == [FILTER] * 4
    assert seen.numbers == []


def test_a_decision_on_a_task_that_an_earlier_step_ended_fails_the_whole_batch() -> None:
    composite = Composite("foreign").with_step(even(FILTER), name="first")
    beyond = composite.with_step(
        lambda tasks: dict.fromkeys([*tasks, task(0)], SUCCESS), name="second", after="first", mode="BATCH"
    )
    with pytest.raises(ForeignDecision, match="step 'second' returned decisions for tasks that it did not get: 0"):
        beyond.handle(batch_of(4))


def test_contexts_get_the_merged_decisions_and_add_theirs_by_priority() -> None:
    composite = Composite("contexts").with_step(even(FILTER), name="first")
    composite.context(lambda _, made: {task: SUSPENSION if made[task].result is FILTER else SUCCESS for task in made})
    composite.context(lambda batch, _: batch.after_commit(lambda: None))
    assert results(composite) == [SUSPENSION, SUCCESS, SUSPENSION, SUCCESS]
    with_failure = composite.with_step(even(None), name="last")
    with_failure.context(lambda _, made: dict.fromkeys(list(made)[:1], FAILURE))
    failed, *others = decisions(with_failure, 2)
    assert (failed.result, others[0].result) == (FAILURE, FAILURE)
    assert str(others[0].error).endswith("made no decision on this task")
    composite.context(lambda *_: next(iter(())))
    assert results(composite, 2) == [FAILURE] * 2


def test_follow_ups_are_in_the_order_of_the_tasks_whichever_thread_was_faster() -> None:
    composite, last = Composite("ordered", threads=4), threading.Event()

    @composite.step()
    def send(task: Task, batch: Batch) -> None:
        assert task.sequence == 3 or last.wait(SECONDS)
        batch.push(task, "mail", [f"{task.sequence}"])
        batch.junction(task, "mail", [[f"{task.sequence}"]])
        last.set()

    batch = batch_of(4)
    composite.handle(batch)
    assert [each.task.sequence for each in batch.follow_ups] == [0, 1, 2, 3]
    assert [each.task.sequence for each in batch.releases] == [0, 1, 2, 3]


def test_a_follow_up_that_cannot_be_pushed_fails_its_task() -> None:
    composite = Composite("pushing")

    @composite.step()
    def send(task: Task, batch: Batch) -> None:
        batch.push(task, "mail", [NewTask("a", priority=500 * (task.sequence == 1))])

    made = decisions(composite, 2)
    assert [each.result for each in made] == [SUCCESS, FAILURE]
    assert "its priority 500 is outside -100..100" in str(made[1].error)


# Batches in flight


class Gate:
    """A step that reports its start, and waits until the test opens it."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, _: Sequence[Task]) -> None:
        self.started.release()
        assert self.open.wait(SECONDS)

    def wait_for_start(self) -> None:
        assert self.started.acquire(timeout=SECONDS)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def start(composite: Composite, batch: Batch | None = None) -> Future[Mapping[Task, Decision]]:
    future = composite.handle(batch or batch_of(1))
    assert isinstance(future, Future)
    return future


def test_concurrency_bounds_the_batches_that_run_at_once_and_close_waits_for_them(gate: Gate) -> None:
    composite = Composite("some", concurrency=2).with_step(gate, name="wait", mode="BATCH")
    futures = [start(composite) for _ in range(3)]
    gate.wait_for_start()
    gate.wait_for_start()
    assert not gate.started.acquire(timeout=0.1)
    closing = threading.Thread(target=composite.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    gate.open.set()
    closing.join(SECONDS)
    assert [each.result for future in futures for each in future.result(0).values()] == [SUCCESS] * 3


def test_a_callback_of_a_future_may_close_the_composite(gate: Gate) -> None:
    closed = threading.Event()
    composite = Composite("closed", concurrency=1).with_step(gate, name="wait", mode="BATCH")

    def close(_: object) -> None:
        composite.close()
        closed.set()

    start(composite).add_done_callback(close)
    gate.open.set()
    assert closed.wait(SECONDS)


def test_an_abandoned_batch_ends_at_once_and_starts_no_later_step(gate: Gate) -> None:
    seen, cancelled = Seen(), threading.Event()
    composite = (
        Composite("abandoned", concurrency=1).with_step(gate, name="wait", mode="BATCH").with_step(seen, after="wait")
    )

    @composite.step()
    async def wait_for_ever(_: Task) -> None:
        gate.started.release()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    given = batch_of(1)
    future = start(composite, given)
    gate.wait_for_start()
    gate.wait_for_start()
    assert {"step wait", "step wait_for_ever"} <= {each.name for each in given.activities()}
    assert future.cancel()  # as a worker does
    given.cancel()
    assert cancelled.wait(SECONDS)
    composite.close()  # does not wait for it
    gate.open.set()
    assert seen.numbers == []


def test_a_coroutine_of_a_batch_that_is_abandoned_before_it_began_is_never_made(gate: Gate) -> None:
    """Python warns of a coroutine that was made and is never awaited."""
    composite = Composite("abandoned", concurrency=2)

    @composite.step()
    async def block_the_loop(task: Task) -> None:
        gate([task])

    first, given = start(composite), batch_of(1)
    gate.wait_for_start()
    second = start(composite, given)
    until(lambda: "a Future of a step" in {each.name for each in given.activities()})
    given.cancel()
    with pytest.raises((CancelledError, InterruptedError)):
        second.result(SECONDS)
    gate.open.set()
    assert [decision.result for decision in first.result(SECONDS).values()] == [SUCCESS]
    composite.close()
    made = [each for each in gc.get_objects() if type(each) is CoroutineType]  # isinstance() loads lazy proxies
    assert [each for each in made if each.__name__ == block_the_loop.__name__] == []


STUCK = """
import threading
from airflow_provider_taskq.worker import Batch, Composite
from airflow_provider_taskq.queue import Task

started = threading.Semaphore(0)

def stick(_):
    started.release()
    threading.Event().wait()

tasks = [Task(number, "work", "a", None, None, 1, False) for number in range(2)]
composite = Composite("stuck", threads=2, concurrency=1).with_step(stick, name="a").with_step(stick, name="b")
composite.handle(Batch(tasks))
for _ in range(2):
    started.acquire()
"""


def test_a_stuck_step_does_not_keep_the_program_from_ending() -> None:
    assert subprocess.run([sys.executable, "-c", STUCK], timeout=SECONDS, check=False).returncode == 0


def test_threads_limits_the_tasks_of_a_step() -> None:
    lock, busy, most, barrier = threading.Lock(), [0], [0], threading.Barrier(2)

    def count(_: Task) -> None:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        barrier.wait(SECONDS)
        with lock:
            busy[0] -= 1

    assert results(Composite("some", threads=2).with_step(count), 16) == [SUCCESS] * 16
    assert most[0] == 2


def test_steps_see_the_context_variables_of_the_thread_that_submits_the_batch() -> None:
    composite = Composite("baggage", concurrency=1, threads=2)
    for name in ("a", "b"):
        composite.step(name=name)(lambda _: Decision(SUCCESS, BAGGAGE.get()))

    @composite.step(after=("a", "b"), mode="BATCH")
    async def awaited(_: Sequence[Task]) -> None:
        assert BAGGAGE.get() == "me"

    token = BAGGAGE.set("me")
    try:
        assert [each.message for each in decisions(composite)] == ["me"] * 4
    finally:
        BAGGAGE.reset(token)


def of_the_batch(tasks: Sequence[Task]) -> Mapping[Task, Result]:
    return dict.fromkeys(tasks, FILTER)


def test_a_pickled_composite_runs_in_threads_of_its_own() -> None:
    composite = Composite("pickled").with_step(of_the_batch, mode="BATCH")
    assert results(composite, 1) == [FILTER]
    made: Composite = pickle.loads(pickle.dumps(composite))  # noqa: S301 -- our own
    assert results(made, 1) == [FILTER]
