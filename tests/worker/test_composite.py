"""Composites in one process: definition of steps, their order, their tasks, and the merge of their decisions."""

import asyncio
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

import pytest
from pyspark import cloudpickle

from airflow_provider_taskq.queue import Decision, InvalidArgument, NewTask, Result, Task
from airflow_provider_taskq.worker.batches import Batch, tagged
from airflow_provider_taskq.worker.composite import Composite, StepMode
from airflow_provider_taskq.worker.handlers import BatchHandler, ForeignDecision, TaskResultException

pytestmark = pytest.mark.promise("A composite gives the same results in threads and as a Spark plan")

SECONDS = 30  # the timeout for an event
FAILURE, SUSPENSION, FILTER, SUCCESS = Result


def task(number: int, topic: str = "work") -> Task:
    return Task(number, topic, f"item-{number}", {"number": number}, None, 1, False)


def batch_of(count: int) -> Batch:
    return Batch(task(number) for number in range(count))


def results(composite: Composite, count: int = 4) -> list[Result]:
    return [decision.result for decision in decisions(composite, count)]


def decisions(composite: Composite, count: int = 4) -> list[Decision]:
    batch = batch_of(count)
    decided = composite.handle(batch)
    composite.close()
    assert list(decided) == list(batch.tasks)
    return list(decided.values())


def even(outcome: object) -> Callable[[Task], Any]:
    """A step that returns this outcome for tasks of even numbers, and None for others."""

    def decided(task: Task) -> Any:
        if task.sequence % 2:
            return None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return decided


class Seen:
    """A step that records its tasks."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __call__(self, task: Task) -> None:
        self.numbers.append(task.sequence)


def test_a_step_has_the_name_of_its_function_and_comes_after_named_steps() -> None:
    composite = Composite("orders")

    @composite.step
    def load(task: Task) -> None: ...

    @composite.step(after=load)
    def check(task: Task) -> None: ...

    @composite.batch(name="report", after=["load", check, check])
    def send(tasks: Sequence[Task]) -> None: ...

    named = [(step.name, step.after, step.whole) for step in composite.steps]
    assert named == [("load", (), False), ("check", ("load",), False), ("report", ("load", "check"), True)]
    assert load(task(1)) is None  # the decorator returns the function itself
    assert isinstance(composite, BatchHandler)


def test_with_step_returns_another_composite_and_leaves_the_first_as_it_was() -> None:
    one = Composite("orders").with_step(even(FILTER), name="first")
    two = one.with_batch(len, name="second", after="first").with_around(lambda _, __, proceed: proceed())
    assert [[step.name for step in each.steps] for each in (one, two)] == [["first"], ["first", "second"]]
    assert results(one) == [FILTER, SUCCESS, FILTER, SUCCESS]
    assert results(one.with_step(even(FAILURE), name="third")) == [FAILURE, SUCCESS, FAILURE, SUCCESS]


def test_an_unknown_dependency_raises_when_the_step_is_added() -> None:
    composite = Composite("orders").with_step(even(None), name="load")
    with pytest.raises(InvalidArgument, match="'orders' has no step 'lod' for `after`; its steps: load"):
        composite.with_step(even(None), name="check", after="lod")
    with pytest.raises(InvalidArgument, match="has no step 'task' for `after`"):
        composite.step(after=task)(len)


def test_a_step_name_that_is_taken_raises_when_the_step_is_added() -> None:
    composite = Composite("orders").with_step(even(None), name="load")
    with pytest.raises(InvalidArgument, match="has a step 'load' already"):
        composite.with_batch(len, name="load")
    twice = composite.with_step(task, name="a").with_step(task, name="b")
    with pytest.raises(InvalidArgument, match="'task' names several steps; give a step name"):
        twice.with_step(len, after=task)


def test_a_step_cannot_come_after_itself_so_there_are_no_cycles() -> None:
    with pytest.raises(InvalidArgument, match="its steps: none"):
        Composite("orders").with_step(even(None), name="load", after="load")


def test_an_invalid_composite_raises() -> None:
    with pytest.raises(InvalidArgument, match="'orders' has no steps"):
        Composite("orders").handle(batch_of(1))
    with pytest.raises(InvalidArgument, match="needs a function of the task, not a int"):
        Composite("orders").with_step(7, name="seven")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="threads must be at least 1"):
        Composite("orders", threads=0)


def test_a_running_composite_takes_no_more_steps_until_it_is_closed() -> None:
    composite = Composite("orders").with_step(even(None), name="load")
    composite.handle(batch_of(1))
    with pytest.raises(InvalidArgument, match="'orders' has started and cannot be changed"):
        composite.step(len)
    composite.close()
    composite.step(even(FILTER))
    assert results(composite, 1) == [FILTER]


def test_a_step_runs_when_its_dependencies_are_done_and_independent_steps_at_once() -> None:
    composite, order, both = Composite("diamond"), list[str](), threading.Barrier(2)

    def noting(name: str, barrier: threading.Barrier | None = None) -> Callable[[Sequence[Task]], None]:
        def step(_: Sequence[Task]) -> None:
            if barrier:
                barrier.wait(SECONDS)
            order.append(name)

        return step

    composite.batch(name="top")(noting("top"))
    composite.batch(name="left", after="top")(noting("left", both))
    composite.batch(name="right", after="top")(noting("right", both))
    composite.batch(name="bottom", after=("left", "right"))(noting("bottom"))
    assert results(composite, 1) == [SUCCESS]
    assert (order[0], set(order[1:3]), order[3:]) == ("top", {"left", "right"}, ["bottom"])


def test_a_slow_step_delays_only_steps_that_come_after_it() -> None:
    composite, passed = Composite("two lanes"), threading.Event()

    @composite.batch
    def slow(_: Sequence[Task]) -> None:
        assert passed.wait(SECONDS)

    @composite.batch
    def quick(_: Sequence[Task]) -> None: ...

    @composite.batch(after=quick)
    def next_to_quick(_: Sequence[Task]) -> None:
        passed.set()

    assert results(composite, 1) == [SUCCESS]


def test_tasks_of_a_parallel_step_run_at_once_and_those_of_a_sequential_one_in_their_order() -> None:
    met = threading.Barrier(4)
    parallel = Composite("parallel", threads=4).with_step(lambda _: [met.wait(SECONDS)].clear(), name="meet")
    assert results(parallel, 4) == [SUCCESS] * 4
    seen = Seen()
    assert results(Composite("one by one").with_step(seen, mode=StepMode.SEQUENTIAL), 50) == [SUCCESS] * 50
    assert seen.numbers == list(range(50))


@pytest.mark.parametrize("outcome", [FAILURE, SUSPENSION, FILTER, Decision(SUCCESS, continued=False)])
def test_only_continued_tasks_enter_later_steps(outcome: Result | Decision) -> None:
    seen = Seen()
    composite = Composite("chain").with_step(even(outcome), name="first").with_step(seen, after="first")
    expected = outcome if isinstance(outcome, Result) else outcome.result
    assert results(composite) == [expected, SUCCESS, expected, SUCCESS]
    assert sorted(seen.numbers) == [1, 3]


def test_a_step_that_no_task_enters_is_not_called_and_the_results_pass_through() -> None:
    seen = Seen()
    composite = Composite("chain").with_batch(lambda _: FILTER, name="foo")
    composite = composite.with_step(seen, name="bar", after="foo").with_step(seen, name="qux", after="bar")
    assert results(composite) == [FILTER] * 4
    assert seen.numbers == []


def test_a_failure_that_is_continued_enters_the_next_step_and_stays_a_failure() -> None:
    seen = Seen()
    failing = even(Decision(FAILURE, "half done", continued=True))
    composite = Composite("chain").with_step(failing, name="first").with_step(seen, after="first")
    made = decisions(composite)
    assert sorted(seen.numbers) == [0, 1, 2, 3]
    assert [(each.result, each.continued) for each in made[:2]] == [(FAILURE, True), (SUCCESS, True)]


@pytest.mark.parametrize("one", Result)
@pytest.mark.parametrize("other", Result)
def test_results_of_parallel_steps_are_merged_by_priority(one: Result, other: Result) -> None:
    seen = Seen()
    composite = Composite("merging").with_batch(lambda _: one, name="a").with_batch(lambda _: other, name="b")
    composite = composite.with_step(seen, after=("a", "b"))
    assert results(composite, 1) == [min(one, other)]
    assert len(seen.numbers) == (one is other is SUCCESS)


def test_if_two_steps_have_the_same_result_the_later_message_and_both_errors_are_kept() -> None:
    composite = Composite("messages").with_batch(lambda _: Decision(SUCCESS, "first"), name="a")
    assert [each.message for each in decisions(composite.with_batch(lambda _: None, name="b"), 1)] == ["first"]
    later = composite.with_batch(lambda _: Decision(SUCCESS, "second"), name="b", after="a")
    assert [each.message for each in decisions(later, 1)] == ["second"]
    failing = (
        Composite("errors").with_step(even(ValueError("one")), name="a").with_step(even(ValueError("two")), name="b")
    )
    (error,) = [each.error for each in decisions(failing, 1)]
    assert isinstance(error, ExceptionGroup)
    assert sorted(map(str, error.exceptions)) == ["one", "two"]


def test_an_exception_in_a_step_of_one_task_fails_that_task() -> None:
    made = decisions(Composite("failing").with_step(even(ValueError("no luck")), name="try"))
    assert [each.result for each in made] == [FAILURE, SUCCESS, FAILURE, SUCCESS]
    assert str(made[0].error) == "no luck"


def test_an_exception_in_a_batch_step_fails_all_tasks_that_entered_it() -> None:
    def broken(_: Sequence[Task]) -> None:
        raise ValueError("no luck")

    composite = Composite("failing").with_step(even(FILTER), name="first").with_batch(broken, after="first")
    assert results(composite) == [FILTER, FAILURE, FILTER, FAILURE]


def test_a_task_result_exception_in_a_step_sets_the_result() -> None:
    raised = TaskResultException(SUSPENSION, continued=True)

    def broken(_: Sequence[Task]) -> None:
        raise raised

    assert results(Composite("one").with_step(even(raised), name="a"), 2) == [SUSPENSION, SUCCESS]
    made = decisions(Composite("all").with_batch(broken), 2)
    assert [(each.result, each.continued) for each in made] == [(SUSPENSION, True)] * 2


def test_a_returned_value_that_is_no_decision_fails_the_task() -> None:
    (made,) = decisions(Composite("odd").with_step(lambda _: "yes", name="a"), 1)
    assert made.result is FAILURE
    assert "a Decision, a Result or None, not str" in str(made.error)
    assert results(Composite("odd").with_batch(lambda _: 7, name="a"), 1) == [FAILURE]
    not_json = Decision(SUCCESS, float("nan"))
    assert results(Composite("odd").with_step(even(not_json), name="a"), 2) == [FAILURE, SUCCESS]


def test_a_task_without_a_decision_fails_with_the_name_of_the_step() -> None:
    made = decisions(Composite("short").with_batch(lambda tasks: {tasks[1]: FILTER}, name="some"), 2)
    assert [each.result for each in made] == [FAILURE, FILTER]
    assert made[0].error == "step 'some' made no decision on this task"


def test_a_decision_on_a_foreign_task_fails_the_whole_batch() -> None:
    composite = Composite("foreign").with_step(even(FILTER), name="first")
    outside = composite.with_batch(lambda _: {task(77): SUCCESS}, name="second")
    with pytest.raises(ForeignDecision, match="step 'second' returned decisions for tasks that it did not get: 77"):
        outside.handle(batch_of(4))
    # Task 0 is in the batch, but the first step did not continue it.
    beyond = composite.with_batch(lambda tasks: dict.fromkeys([*tasks, task(0)], SUCCESS), name="third", after="first")
    with pytest.raises(ForeignDecision, match="did not get: 0"):
        beyond.handle(batch_of(4))


def test_a_parallel_coroutine_step_awaits_all_tasks_at_once() -> None:
    composite, met = Composite("awaited"), list[asyncio.Barrier]()

    @composite.step
    async def meet(task: Task, batch: Batch) -> Result:
        barrier = batch.suggest(asyncio.Barrier, lambda: asyncio.Barrier(len(batch.tasks)))
        async with asyncio.timeout(SECONDS):
            await barrier.wait()
        met.append(barrier)
        if task.sequence == 1:
            raise ValueError("one only")
        return FILTER if task.sequence else SUCCESS

    @composite.batch(after=meet)
    async def all_of_them(tasks: Sequence[Task]) -> Mapping[Task, Result]:
        await asyncio.sleep(0)
        return dict.fromkeys(tasks, SUSPENSION)

    assert results(composite) == [SUSPENSION, FAILURE, FILTER, FILTER]
    assert len(met) == 4


def test_a_sequential_coroutine_step_awaits_one_task_after_another() -> None:
    composite, seen = Composite("in turn"), list[str]()

    @composite.step(mode=StepMode.SEQUENTIAL)
    async def turn(task: Task) -> None:
        seen.append(f"start {task.sequence}")
        await asyncio.sleep(0)
        seen.append(f"end {task.sequence}")

    assert results(composite, 2) == [SUCCESS] * 2
    assert seen == ["start 0", "end 0", "start 1", "end 1"]


def test_awaited_steps_of_all_batches_share_an_event_loop() -> None:
    composite, loops = Composite("loop"), set[int]()

    @composite.batch
    async def where(_: Sequence[Task]) -> None:
        loops.add(id(asyncio.get_running_loop()))

    for _ in range(3):
        composite.handle(batch_of(1))
    composite.close()
    assert len(loops) == 1


def test_a_step_may_return_a_future() -> None:
    def later(_: Sequence[Task]) -> "Future[Result]":
        future: Future[Result] = Future()
        threading.Thread(target=future.set_result, args=(FILTER,)).start()
        return future

    assert results(Composite("future").with_batch(later), 2) == [FILTER] * 2


def test_a_step_requires_a_value_that_an_earlier_step_registered() -> None:
    composite = Composite("supplement")

    @composite.step
    def load(task: Task, batch: Batch) -> None:
        batch.register(str, f"order {task.sequence}", task)

    @composite.step(after=load)
    def check(task: Task, batch: Batch) -> Decision:
        return Decision(SUCCESS, batch.require(str, task))

    assert [each.message for each in decisions(composite, 2)] == ["order 0", "order 1"]


def test_steps_see_the_context_variables_of_the_thread_that_submits_the_batch() -> None:
    user: ContextVar[str] = ContextVar("user")
    composite = Composite("baggage", concurrency=1, threads=2)
    for name in ("a", "b"):
        composite.step(name=name)(lambda _: Decision(SUCCESS, user.get()))

    @composite.batch(after=("a", "b"))
    async def awaited(_: Sequence[Task]) -> None:
        assert user.get() == "me"

    user.set("me")
    assert [each.message for each in decisions(composite)] == ["me"] * 4


def test_a_wrapper_around_a_step_gets_its_name_and_tasks_and_may_change_its_decisions() -> None:
    composite, seen = Composite("around").with_step(even(FILTER), name="first"), list[tuple[str, int]]()

    @composite.around
    def noting(
        step: str, tasks: Sequence[Task], proceed: Callable[[], Mapping[Task, Decision]]
    ) -> Mapping[Task, Decision]:
        seen.append((step, len(tasks)))
        return proceed()

    @composite.around
    def strict(_: str, __: Sequence[Task], proceed: Callable[[], Mapping[Task, Decision]]) -> Mapping[Task, Decision]:
        assert seen  # the wrapper that was added first is the outermost
        return {task: Decision(FAILURE) if made.result is FILTER else made for task, made in proceed().items()}

    composite.step(after="first")(Seen())
    assert results(composite) == [FAILURE, SUCCESS, FAILURE, SUCCESS]
    assert seen == [("first", 4), ("Seen", 2)]


def test_an_error_in_a_wrapper_fails_the_tasks_of_its_step() -> None:
    def broken(_: str, __: Sequence[Task], proceed: Callable[[], Mapping[Task, Decision]]) -> Mapping[Task, Decision]:
        proceed()
        raise ValueError("no luck")

    assert results(Composite("around").with_step(even(None), name="a").with_around(broken), 2) == [FAILURE] * 2


def test_contexts_get_the_merged_decisions_and_add_theirs_by_priority() -> None:
    composite = Composite("contexts").with_step(even(FILTER), name="first")
    composite.context(lambda _, made: {task: SUSPENSION if made[task].result is FILTER else SUCCESS for task in made})
    composite.context(lambda batch, _: batch.after_commit(lambda: None))
    assert results(composite) == [SUSPENSION, SUCCESS, SUSPENSION, SUCCESS]
    with_failure = composite.with_context(lambda _, made: dict.fromkeys(list(made)[:1], FAILURE))
    failed, *others = decisions(with_failure, 2)
    assert (failed.result, others[0].result) == (FAILURE, FAILURE)
    assert str(others[0].error).endswith("made no decision on this task")


def test_a_context_that_fails_fails_its_tasks() -> None:
    composite = Composite("contexts").with_step(even(None), name="first")
    assert results(composite.with_context(lambda *_: next(iter(()))), 2) == [FAILURE] * 2


def test_a_composite_rewrites_the_follow_ups_of_its_steps() -> None:
    composite = Composite("rewriting")

    @composite.step(mode=StepMode.SEQUENTIAL)
    def send(task: Task, batch: Batch) -> None:
        batch.push(task, "mail", ["a", NewTask("b", priority=3)])

    composite.rewrite(tagged)
    batch = batch_of(2)
    composite.handle(batch)
    pushed = [(new.identifier, new.reference, new.priority) for each in batch.follow_ups for new in each.tasks]
    assert pushed == [("a", "0", 0), ("b", "0", 3), ("a", "1", 0), ("b", "1", 3)]


def test_follow_ups_are_in_the_order_of_the_tasks_whichever_thread_was_faster() -> None:
    composite, last = Composite("ordered", threads=4), threading.Event()

    @composite.step
    def send(task: Task, batch: Batch) -> None:
        assert task.sequence == 3 or last.wait(SECONDS)
        batch.push(task, "mail", [f"{task.sequence}"])
        batch.junction(task, "mail", [[f"{task.sequence}"]])
        last.set()

    batch = batch_of(4)
    composite.handle(batch)
    assert [each.task.sequence for each in batch.follow_ups] == [0, 1, 2, 3]
    assert [each.task.sequence for each in batch.releases] == [0, 1, 2, 3]


def test_a_rewrite_that_fails_fails_the_task_of_the_follow_up() -> None:
    composite = Composite("rewriting")

    @composite.step
    def send(task: Task, batch: Batch) -> None:
        if task.sequence:
            batch.push(task, "mail", ["a"])

    composite.rewrite(lambda task, _: NewTask("1"[task.sequence]))
    assert results(composite, 2) == [SUCCESS, FAILURE]


def test_a_follow_up_that_cannot_be_pushed_fails_its_task() -> None:
    composite = Composite("pushing")

    @composite.step
    def send(task: Task, batch: Batch) -> None:
        batch.push(task, "mail", [NewTask("a", priority=500 * task.sequence)])

    made = decisions(composite, 2)
    assert [each.result for each in made] == [SUCCESS, FAILURE]
    assert "its priority 500 is outside -100..100" in str(made[1].error)


def test_a_running_composite_pickles_as_its_definition() -> None:
    composite = Composite("orders", threads=3).with_step(task, name="load").with_batch(batch_of, after="load")
    composite.handle(batch_of(1))
    copied = pickle.loads(pickle.dumps(composite))  # noqa: S301 -- our own
    assert copied.steps == composite.steps
    composite.close()


def test_a_composite_whose_steps_refer_to_it_pickles_by_value() -> None:
    composite = Composite("orders")

    @composite.step
    def load(task: Task) -> Decision:
        return Decision(SUCCESS, f"{composite.name} {task.sequence}")

    copied = cloudpickle.loads(cloudpickle.dumps(composite))  # type: ignore[no-untyped-call]
    assert [each.message for each in decisions(copied, 1)] == ["orders 0"]
