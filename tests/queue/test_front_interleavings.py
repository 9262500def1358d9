"""Random steps of four sessions, three of them in open transactions: a poll passes no task, and repeats none."""

import random
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    TaskQueue,
    TaskQueueError,
    TopicPolicy,
)
from tests.internals import advance_fronts, advance_identifiers, passed_tasks, unlocked_tasks

pytestmark = pytest.mark.promise("A poll passes no due task, however transactions interleave")

MILLISECOND = timedelta(milliseconds=1)
SEEDS, STEPS = 8, 120
CONDITIONS = [each for each in Condition if each is not Condition.NONE]


class Steps:
    """Steps that place, claim and return tasks. The first session commits each step, the others have steps for it."""

    def __init__(self, seed: int, queue: TaskQueue, others: list[TaskQueue]) -> None:
        self.random = random.Random(seed)  # noqa: S311 -- chooses steps
        self.queue, self.others = queue, others
        self.owners = {name: queue.register(name) for name in "ab"}
        self.checker = queue.register("checker")
        self.trace: list[str] = []

    def take(self) -> None:
        """Takes one step. A step that an open transaction of another session hinders has no effect."""
        steps: list[Callable[[], object]] = [
            *[self.push, self.poll, self.poll_in_turn, self.fail, self.advance, self.commit] * 3,
            *[self.snooze, self.release, self.roll_back, self.savepoint, self.roll_back_to_savepoint],
            *[self.offer, self.set_priority, self.set_due, self.run_now, self.pause_and_resume, self.reset],
        ]
        step = self.random.choice(steps)
        self.trace.append(step.__name__)
        try:
            step()
        except (TaskQueueError, psycopg.errors.LockNotAvailable, psycopg.errors.InvalidSavepointSpecification):
            self.trace.append("had no effect")
            for other in self.others:
                if other.conn.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
                    other.conn.rollback()

    def any_queue(self) -> TaskQueue:
        return self.random.choice([self.queue, *self.others])

    def other(self) -> psycopg.Connection:
        return self.random.choice(self.others).conn

    def owner(self) -> Owner:
        return self.random.choice(list(self.owners.values()))

    def order(self) -> Order:
        return self.random.choice(list(Order))

    def task(self) -> NewTask:
        delay = self.random.choice([None, None, 0, 5, 30, -20])
        return NewTask(
            self.random.choice("vwxyz"),
            priority=self.random.choice([0, 0, 1, -1]),
            delay=None if delay is None else delay * MILLISECOND,
        )

    def some(self, most: int, queue: TaskQueue | None = None, owner: Owner | None = None) -> list[int]:
        """READY tasks, or those that an owner holds, which no transaction of another session holds."""
        found = sorted(unlocked_tasks((queue or self.queue).conn, owner.name if owner else None))
        return self.random.sample(found, min(len(found), most))

    def push(self) -> None:
        self.any_queue().push("work", [self.task() for _ in range(self.random.randrange(1, 4))])

    def poll(self) -> None:
        self.any_queue().poll("work", self.owner(), self.random.randrange(1, 5), self.order())

    def poll_in_turn(self) -> None:
        queue, condition = self.any_queue(), self.random.choice(CONDITIONS)
        with queue.conn.transaction():
            tasks = queue.poll("work", self.owner(), self.random.randrange(1, 5), self.order(), condition)
            advance_identifiers(queue.conn, tasks)

    def complete(self, decision: Decision) -> None:
        queue, owner = self.any_queue(), self.owner()
        queue.complete(owner, dict.fromkeys(self.some(2, queue, owner), decision))

    def fail(self) -> None:
        self.complete(Decision(Result.FAILURE, error="down"))

    def snooze(self) -> None:
        self.complete(Decision(Result.SUSPENSION, delay=5 * MILLISECOND))

    def reset(self) -> None:
        owner = self.owner()
        tasks = self.some(2, owner=owner)
        self.queue.complete(owner, dict.fromkeys(tasks, Result.SUCCESS))
        self.queue.revive("work", sequences=tasks)

    def release(self) -> None:
        owner = self.owner()
        self.queue.release(owner)
        self.owners[owner.name] = self.queue.register(owner.name)

    def advance(self) -> None:
        advance_fronts(self.any_queue().conn, backwards=self.order() is Order.LAST_IN_FIRST_OUT)

    def commit(self) -> None:
        self.other().commit()

    def roll_back(self) -> None:
        self.other().rollback()

    def savepoint(self) -> None:
        self.other().execute("SAVEPOINT here")

    def roll_back_to_savepoint(self) -> None:
        self.other().execute("ROLLBACK TO here")

    def offer(self) -> None:
        task = self.task()
        self.queue.offer("work", task.identifier, {"n": len(self.trace)}, delay=task.delay, priority=task.priority)

    def set_priority(self) -> None:
        self.queue.change_waiting("work", self.some(1), priority=self.random.choice([-1, 0, 2]))

    def set_due(self) -> None:
        for sequence in self.some(1):
            self.queue.change_waiting(
                "work", [sequence], due=self.queue.now() + self.random.choice([-50, 0, 10]) * MILLISECOND
            )

    def run_now(self) -> None:
        self.queue.change_waiting("work", self.some(1), due="now")

    def pause_and_resume(self) -> None:
        for sequence in self.some(1):
            self.queue.change_waiting("work", [sequence], paused=True)
            self.advance()
            self.queue.change_waiting("work", [sequence], paused=False)

    def check(self) -> None:
        """A poll would find exactly the due tasks that no other session holds, in its order, each once."""
        conn = self.queue.conn
        assert passed_tasks(conn) == [], self.trace
        for order in Order:
            with conn.transaction(force_rollback=True):
                due = unlocked_tasks(conn, due_only=True)
                priorities = {info.sequence: info.priority for info in self.queue.page("work", size=10_000)}
                if order is Order.LAST_IN_FIRST_OUT:
                    places = {sequence: place for place, sequence in enumerate(due)}
                    due.sort(key=lambda sequence: (-priorities[sequence], -places[sequence]))
                found = [task.sequence for task in self.queue.poll("work", self.checker, 10_000, order)]
            assert len(found) == len(set(found)), self.trace
            assert [sequence for sequence in found if sequence in set(due)] == due, (
                self.trace
            )  # others became due since


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_poll_finds_every_due_task_once_after_random_steps_of_open_transactions(
    queue: TaskQueue, open_queue: Callable[[], TaskQueue], seed: int
) -> None:
    probe = seed % 4 == 0
    queue.alter_topic("work", TopicPolicy(RetryPolicy(1000, base=10 * MILLISECOND, factor=1.0, probe=probe)))
    others = [open_queue() for _ in range(3)]
    for each in (queue, *others):
        each.conn.execute("SELECT set_config('lock_timeout', '100ms', false)")
        if each is not queue:
            each.conn.commit()
    steps = Steps(seed, queue, others)
    for _ in range(STEPS):
        steps.take()
        steps.check()
