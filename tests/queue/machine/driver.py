"""Runs each step on the queue and on its model, and compares them afterwards."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    Insertion,
    Order,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
    connect,
)
from tests.internals import age_leases, age_tasks, empty_queue, passed_tasks, set_next_sequence
from tests.queue.model.operating import Model
from tests.queue.model.pushing import Draft
from tests.queue.model.tasks import HOUR, ModelTask, Moment

TOPICS, NAMES, IDENTIFIERS = ("one", "two", "three"), ("anna", "bert", "carl"), ["a", "b", "c"]
AT_ONCE = timedelta(0)
POLICIES = (
    TopicPolicy(
        RetryPolicy(max_attempts=4, base=HOUR, factor=2.0, max_delay=3 * HOUR, horizon=5 * HOUR), max_crashes=2
    ),
    TopicPolicy(RetryPolicy(max_attempts=5, base=HOUR, factor=2.0, max_delay=4 * HOUR, probe=True), max_crashes=3),
    TopicPolicy(RetryPolicy(max_attempts=9, base=HOUR, factor=1.0, max_elapsed=2 * HOUR), on_expiry="expire", ttl=HOUR),
    TopicPolicy(RetryPolicy(max_attempts=3, base=AT_ONCE), max_crashes=2),
    TopicPolicy(RetryPolicy(max_attempts=3, base=AT_ONCE, probe=True), on_expiry="expire"),
)
Step = TypeVar("Step", bound=Callable[..., None])
T = TypeVar("T")


def step(weight: int, **values: st.SearchStrategy[Any]) -> Callable[[Step], Step]:
    """Makes a method a step with these values. `weight`: how often it is drawn.

    A step is not a rule of Hypothesis, which would leave out most rules in each run, so that few calls have an effect.
    """

    def marked(method: Step) -> Step:
        method.weight, method.values = weight, values  # type: ignore[attr-defined]
        return method

    return marked


def steps_of(machine: type) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """The name of a step and its values."""
    found = {name: method for name, method in inspect.getmembers(machine) if hasattr(method, "weight")}
    weighted = [name for name, method in found.items() for _ in range(method.weight)]
    return st.sampled_from(weighted).flatmap(
        lambda name: st.tuples(st.just(name), st.fixed_dictionaries(found[name].values))
    )


def picked(candidates: Sequence[T], numbers: Sequence[int]) -> list[T]:
    """Some of the candidates, without repetition, by numbers that were drawn before the candidates were known."""
    return list(dict.fromkeys(candidates[number % len(candidates)] for number in numbers)) if candidates else []


class Driver(RuleBasedStateMachine):
    """A queue, its model, and the registered owners."""

    dsn: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.conn = self.stack.enter_context(connect(self.dsn, autocommit=True))
        self.queue = TaskQueue(self.conn)
        self.model = Model()
        self.owners: dict[str, Owner] = {}
        self.former: list[Owner] = []  # owners whose names were registered again
        self.highest = 0  # sequence so far

    @initialize(one_transaction=st.booleans(), filled=st.booleans())
    def begin(self, one_transaction: bool, filled: bool) -> None:
        """Creates an empty queue with its topics. Every verb commits, or none does."""
        empty_queue(self.conn)
        set_next_sequence(self.conn, 101)  # so that each run is like any other
        self.conn.autocommit = not one_transaction
        for topic, policy in zip(TOPICS, POLICIES, strict=False):
            assert self.queue.create_topic(topic, policy)
            assert self.model.create_topic(topic, policy)
        owners = [self.register(name, 9) for name in NAMES[:2]]  # the third comes when it likes
        for topic in TOPICS * filled:
            self.begin_topic(topic, owners[0])

    def begin_topic(self, topic: str, owner: Owner) -> None:
        """Creates a topic with ended tasks, so that later tasks can depend on them."""
        drafts = [Draft(name) for name in IDENTIFIERS]
        pushed = [task.sequence for task in self.queue.push(topic, IDENTIFIERS)]
        self.model.push(topic, drafts, Insertion.APPEND, self.model.now, pushed)
        for each in (self.queue, self.model):
            each.poll(topic, owner, 2, Order.FIRST_IN_FIRST_OUT, Condition.NONE)
        self.queue.complete(owner, dict.fromkeys(pushed[:2], Result.SUCCESS))
        self.model.complete(owner, dict.fromkeys(pushed[:2], Decision(Result.SUCCESS)))

    def teardown(self) -> None:
        if not self.conn.autocommit:
            self.conn.rollback()
        self.stack.close()

    def both(self, real: Callable[[], Any], expected: Callable[[], Any]) -> Any:
        """Calls the queue and the model, checks that both return or raise the same, and returns the value."""
        reported, refused = self._outcome(real)
        should, refusal = self._outcome(expected)
        assert (refused, reported) == (refusal, should), f"queue: {refused or reported}; model: {refusal or should}"
        return reported

    def same(self, verb: str, *values: object, **named: object) -> None:
        """Calls a verb of the queue and of the model with the same values."""
        self.both(*(lambda of=each: getattr(of, verb)(*values, **named) for each in (self.queue, self.model)))

    def _outcome(self, call: Callable[[], Any]) -> tuple[Any, type[Exception] | None]:
        """Return the result of a call, or the type of its error. An error undoes the call, to a savepoint if needed."""
        try:
            with nullcontext() if self.conn.autocommit else self.conn.transaction():
                return call(), None
        except TaskQueueError as error:
            return None, type(error)

    def topic_with(self, number: int, *states: State) -> str:
        """Choose a topic that has tasks in one of the states, if there is one, so that most steps have an effect."""
        fitting = [topic for topic in self.model.topics if self.model.of_topic(topic, *states)]
        return picked(fitting or sorted(self.model.topics), [number])[0]

    def register(self, name: str, lease: int) -> Owner:
        """Registers under a new fence, and compares whether the name held tasks."""
        if name in self.owners:
            self.former.append(self.owners[name])
        owner = self.owners[name] = self.queue.register(name, lease * HOUR)
        assert owner.resumed == self.model.register(name, owner.fence, lease)
        return owner

    def half_past(self, hour: int) -> datetime:
        """The moment half an hour after everything that happened in an hour of the model."""
        return self.queue.now() + (hour - self.model.now.hours) * HOUR + HOUR / 2

    def new_sequences(self) -> list[int]:
        """The sequences of tasks that the model does not have yet."""
        rows = self.conn.execute(
            "SELECT sequence FROM taskq.task_info WHERE sequence > %s ORDER BY sequence", (self.highest,)
        ).fetchall()
        return [row[0] for row in rows]

    def pass_time(self, hours: int) -> None:
        """Moves all stored times back, instead of waiting."""
        for age in (age_tasks, age_leases):
            age(self.conn, hours * HOUR)
        self.model.pass_time(hours)

    @invariant()
    def no_front_passes_a_task(self) -> None:
        """A poll finds every READY task that waits for nothing: it lies behind the front, or it is late."""
        assert passed_tasks(self.conn) == []

    @invariant()
    def both_hold_the_same_tasks(self) -> None:
        """Compares everything that can be read of both."""
        rows = self.conn.execute(
            "SELECT sequence, topic, identifier, state, descent, owner, attempt, crashes, redelivered, priority,"
            " payload, reference, output, error, status, clock_timestamp(), created, available_at, completed"
            " FROM taskq.task_info ORDER BY sequence"
        ).fetchall()
        self.highest = max([self.highest, *self.model.tasks])
        self.model.tick()
        reported = [self._reported(row) for row in rows]
        expected = [self._expected(task) for _, task in sorted(self.model.tasks.items())]
        assert reported == expected, [pair for pair in zip_longest(reported, expected) if pair[0] != pair[1]]

    def _reported(self, row: tuple[Any, ...]) -> list[Any]:
        """A row of the queue, with its times in hours from now."""
        *values, error, status, now, created, available_at, completed = row
        error = "lease" if error is not None and error.startswith("given up: the lease") else error
        moments = [None if at is None else round((at - now) / HOUR) for at in (created, available_at, completed)]
        known = self.model.tasks.get(row[0])
        reported = known is not None and (known.state is not State.READY or not known.depends_on)
        return [*values, error, status if reported else None, *moments]

    def _expected(self, task: ModelTask) -> list[Any]:
        """The same row of the model. Only the next poll knows whether a task waits for another one."""
        reported = task.state is not State.READY or not task.depends_on
        owner = None if task.state is State.READY else task.owner
        return [
            *(task.sequence, task.topic, task.identifier, task.state, task.descent, owner, task.attempt, task.crashes),
            *(task.redelivered, task.priority, task.payload, task.reference, task.output, task.error),
            self.model.status(task) if reported else None,
            *(self._ago(moment) for moment in (task.created, task.due, task.completed)),
        ]

    def _ago(self, moment: Moment | None) -> int | None:
        return None if moment is None else moment.hours - self.model.now.hours
