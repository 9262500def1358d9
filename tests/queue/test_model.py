"""The queue beside a model of it in memory: whatever is done in whatever order, both say the same."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_provider_taskq.queue import (
    Decision,
    Insertion,
    LeaseLost,
    NewTask,
    NotHeld,
    Order,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
    connect,
)
from tests.queue.conftest import everything, lapse
from tests.queue.queue_model import MAX_ATTEMPTS, MAX_CRASHES, Model, ModelOwner, ModelTask

NAMES = ("anna", "bert", "carl")
RESULTS = [Result.FAILURE, Result.FAILURE, *Result]


class QueueMachine(RuleBasedStateMachine):
    """Drives both, and compares them after each step."""

    dsn: str

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.queue = TaskQueue(self.stack.enter_context(connect(self.dsn)))
        self.model = Model()

    @initialize()
    def begin(self) -> None:
        retry = RetryPolicy(max_attempts=MAX_ATTEMPTS, base=timedelta(0))
        self.queue.create_topic("work", TopicPolicy(retry, max_crashes=MAX_CRASHES))
        for name in NAMES[:2]:  # the third comes when it likes
            self.register(name)

    def teardown(self) -> None:
        self.queue.conn.rollback()
        self.stack.close()

    @rule(
        pushed=st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(-1, 1)), max_size=4),
        insertion=st.sampled_from([Insertion.APPEND] * 3 + list(Insertion)),
        streamed=st.booleans(),
    )
    def push(self, pushed: list[tuple[str, bool, int]], insertion: Insertion, streamed: bool) -> None:
        new = [NewTask(name, suspended=asleep, priority=priority) for name, asleep, priority in pushed]
        before = {info.sequence for info in everything(self.queue)}
        if streamed:
            self.queue.push_stream("work", iter(new), insertion)
        else:
            self.queue.push("work", new, insertion)
        sequences = [info.sequence for info in everything(self.queue) if info.sequence not in before]
        for name in {name for name, _, _ in pushed}:
            if insertion is not Insertion.APPEND:
                self.model.displace(name, insertion)
        self.model.turn += 1
        stored = list(enumerate(pushed))
        if insertion is Insertion.DELETE:
            stored = [(at, task) for at, task in stored if task[0] not in {later[0] for later in pushed[at + 1 :]}]
        assert len(sequences) == len(stored)
        for sequence, (at, (name, asleep, priority)) in zip(sequences, stored, strict=True):
            state = State.SUSPENDED if asleep else State.READY
            task = ModelTask(sequence, name, state, priority, pushed=self.model.turn, due=self.model.turn)
            if insertion is not Insertion.APPEND and name in {later[0] for later in pushed[at + 1 :]}:
                task.descent, task.state = state, State.REDUNDANT
            self.model.tasks[sequence] = task

    @rule(name=st.sampled_from(NAMES))
    def register(self, name: str) -> None:
        owner = self.queue.register(name)
        assert all(owner.fence > other.owner.fence for other in self.model.owners.values())
        assert owner.resumed == bool(self.model.held(name))
        self.model.owners[name] = ModelOwner(owner)

    @rule(name=st.sampled_from(NAMES), size=st.integers(0, 4), order=st.sampled_from(Order), late=st.booleans())
    def poll(self, name: str, size: int, order: Order, late: bool) -> None:
        known = self.model.owners.get(name)
        if known is None or ((known.gone or known.lapsed) and not late):
            self.register(name)  # so that most polls take something
            known = self.model.owners[name]
        if known.gone or known.lapsed:
            self.refused(LeaseLost, lambda: self.queue.poll("work", known.owner, size, order))
            return
        expected = self.model.ready(order)[:size]
        tasks = self.queue.poll("work", known.owner, size, order)
        assert [task.sequence for task in tasks] == [task.sequence for task in expected]
        for task in expected:
            task.state, task.holder = State.ACTIVE, name
            task.attempt += 1
        assert [task.attempt for task in tasks] == [task.attempt for task in expected]

    @precondition(lambda self: self.model.working())
    @rule(
        data=st.data(),
        results=st.lists(st.sampled_from(RESULTS), min_size=1, max_size=3),
        stray=st.sampled_from([False, False, True]),
    )
    def complete(self, data: st.DataObject, results: list[Result], stray: bool) -> None:
        name = data.draw(st.sampled_from(self.model.working() + list(self.model.owners) * stray))
        known = self.model.owners[name]
        mine = self.model.held(name) if not known.gone else []
        others = [task for task in self.model.tasks.values() if task not in mine]
        chosen = (mine + others if stray else mine)[: len(results)]
        if stray and others:
            chosen[-1:] = others[:1]
        decisions: dict[Task | int, Decision | Result] = dict(
            zip([task.sequence for task in chosen], map(Decision, results), strict=False)
        )
        if not decisions:
            return
        if known.gone:
            self.refused(LeaseLost, lambda: self.queue.complete(known.owner, decisions))
        elif any(task not in mine for task in chosen):
            self.refused(NotHeld, lambda: self.queue.complete(known.owner, decisions))
        else:
            self.finish(known.owner, chosen, results)

    @rule(name=st.sampled_from(NAMES[:2]), results=st.lists(st.sampled_from(RESULTS), min_size=1, max_size=4))
    def work(self, name: str, results: list[Result]) -> None:
        """What a consumer does most of the time, so that tasks live long enough to fail twice."""
        self.poll(name, len(results), Order.FIRST_IN_FIRST_OUT, late=False)
        self.finish(self.model.owners[name].owner, self.model.held(name), results)

    def finish(self, owner: Owner, chosen: list[ModelTask], results: list[Result]) -> None:
        """Failures one by one, so that the order of their second tries is told."""
        for task, result in zip(chosen, results, strict=False):
            self.queue.complete(owner, {task.sequence: result})
            self.model.complete(task, result)

    @precondition(lambda self: self.model.working())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.model.working() + [n for n, o in self.model.owners.items() if o.gone]))
        known = self.model.owners[name]
        held = [] if known.gone else self.model.held(name)
        assert self.queue.release(known.owner) == len(held)
        for task in held:
            self.model.give_back(task)
        known.gone = True

    @precondition(lambda self: self.model.working())
    @rule(data=st.data(), at_once=st.booleans())
    def let_lapse(self, data: st.DataObject, at_once: bool) -> None:
        known = self.model.owners[data.draw(st.sampled_from(self.model.working()))]
        lapse(self.queue, known.owner)
        known.lapsed = True
        if at_once:
            self.expire()

    @rule()
    def expire(self) -> None:
        taken = 0
        for name, known in self.model.owners.items():
            if known.lapsed and not known.gone:
                for task in self.model.held(name):
                    self.model.crash(task)
                    taken += 1
                known.gone = True
        assert self.queue.expire() == taken

    @rule(name=st.sampled_from(NAMES))
    def heartbeat(self, name: str) -> None:
        known = self.model.owners.get(name)
        if known is None:
            return
        if known.gone:
            self.refused(LeaseLost, lambda: self.queue.heartbeat(known.owner))
        else:
            self.queue.heartbeat(known.owner)
            known.lapsed = False

    @invariant()
    def both_say_the_same(self) -> None:
        if "work" not in self.queue.topics():
            return
        assert {
            info.sequence: (info.identifier, info.state, info.descent, info.attempt, info.crashes, info.redelivered)
            for info in everything(self.queue)
        } == {
            task.sequence: (task.identifier, task.state, task.descent, task.attempt, task.crashes, task.redelivered)
            for task in self.model.tasks.values()
        }
        assert self.queue.ready("work", 1000) == len(self.model.ready())
        for name, known in self.model.owners.items():
            held = {task.sequence for task in self.queue.held(known.owner)}
            assert held == (set() if known.gone else {task.sequence for task in self.model.held(name)})

    def refused(self, error: type[Exception], call: object) -> None:
        """The call raises that error, and nothing has changed (the invariant looks)."""
        assert callable(call)
        with pytest.raises(error), self.queue.conn.transaction():
            call()


@pytest.fixture
def machine(dsn: str) -> Iterator[type[QueueMachine]]:
    yield type("Machine", (QueueMachine,), {"dsn": dsn})  # noqa: PT022 - a class for this test's database


def test_the_queue_does_what_its_model_does(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None, database=None)
    )


@pytest.mark.slow
def test_the_queue_does_what_its_model_does_for_long(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=200, stateful_step_count=50, deadline=None, database=None)
    )
