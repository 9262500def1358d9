"""One task at a time per identifier: between the two checks of a poll, and at scale. Other steps are in turns.spec."""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import permutations

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    NewTask,
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
from tests.internals import plant_change
from tests.queue.conftest import InBackground, task_in, until
from tests.queue.explained import changed_rows, explain

pytestmark = pytest.mark.promise("Two tasks of one identifier never run at once, and none overtakes another")

SINGULAR = Condition.SINGULAR_BY_IDENTIFIER


class StoppingPoll:
    """A poll that stops between its two checks of whose turn it is, in a transaction of its own."""

    def __init__(self, control: TaskQueue, dsn: str, number: int, background: InBackground[list[Task]]) -> None:
        self.control, self.number, self.background = control, number, background
        self.queue = TaskQueue(connect(dsn))
        self.queue.conn.execute("SELECT set_config('tests.stop', %s, false)", (str(number),))
        self.owner = self.queue.register(f"stopping {number}")
        self.queue.conn.commit()

    def look(self) -> None:
        """Begins the poll, which stops after its first check if that finds a task."""
        self.control.conn.execute("SELECT pg_advisory_lock(%s)", (self.number,))
        self.polled = self.background(lambda: self.queue.poll("work", self.owner, 50, condition=SINGULAR))
        stopped = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'advisory'"
        pid = self.queue.conn.info.backend_pid
        until(lambda: self.polled.done() or self.control.conn.execute(stopped, (pid,)).rowcount)

    def take(self) -> list[Task]:
        """Lets the poll go on, and returns its tasks."""
        self.control.conn.execute("SELECT pg_advisory_unlock(%s)", (self.number,))
        return self.polled.result(300)


@pytest.fixture
def stopping(
    queue: TaskQueue, dsn: str, background: InBackground[list[Task]]
) -> Iterator[tuple[StoppingPoll, StoppingPoll]]:
    """Two polls that stop. For a database of the test's own."""
    plant_change(queue.conn, "polls by identifier stop between their two checks")
    polls = StoppingPoll(queue, dsn, 1, background), StoppingPoll(queue, dsn, 2, background)
    yield polls
    for poll in polls:
        poll.queue.conn.close()


@pytest.mark.own_database
def test_a_poll_sees_tasks_that_another_poll_claimed_and_completed_between_its_two_checks(
    queue: TaskQueue, owner: Owner, stopping: tuple[StoppingPoll, StoppingPoll]
) -> None:
    """The steps are single statements. The second check sees each task that another poll changed since the first."""
    one, _ = stopping
    first, second, third = queue.push("work", ["a", "a", "b"])
    one.look()
    assert queue.poll("work", owner, condition=SINGULAR) == [first]
    assert one.take() == [third], "a is ACTIVE by now"
    one.queue.conn.rollback()
    one.look()
    queue.complete(owner, {first: Result.SUCCESS})
    assert queue.poll("work", owner, condition=SINGULAR) == [second]
    assert one.take() == [third]
    one.queue.conn.rollback()
    one.look()
    queue.complete(owner, {second: Result.SUCCESS})
    assert one.take() == [third]


@pytest.mark.own_database
@pytest.mark.parametrize("ahead", ["an earlier place", "a higher priority"])
def test_a_task_ahead_takes_the_turn_between_the_two_checks_of_a_poll(
    queue: TaskQueue, owner: Owner, stopping: tuple[StoppingPoll, StoppingPoll], ahead: str
) -> None:
    failed = task_in(queue, owner, State.FAILED, "a")
    [later] = queue.push("work", ["a"])
    one, _ = stopping
    one.look()
    if ahead == "an earlier place":
        first = failed
        queue.revive("work", State.FAILED)
    else:
        [first] = queue.push("work", [NewTask("a", priority=1, available_at=queue.now() - timedelta(hours=1))])
    assert later not in one.take()
    one.queue.conn.rollback()
    assert queue.poll("work", owner, condition=SINGULAR) == [first]


@pytest.mark.own_database
def test_no_two_tasks_of_an_identifier_are_active_under_any_interleaving_of_two_polls(
    queue: TaskQueue, owner: Owner, stopping: tuple[StoppingPoll, StoppingPoll]
) -> None:
    """All orders of look, look, take, take. The second poll to take gets nothing."""
    steps = ["look one", "look two", "take one", "take two", "commit one", "commit two"]
    orders = [
        order
        for order in permutations(steps)
        if all(order.index(f"look {n}") < order.index(f"take {n}") < order.index(f"commit {n}") for n in ("one", "two"))
    ]
    assert len(orders) == 20
    polls = dict(zip(("one", "two"), stopping, strict=True))
    for number, order in enumerate(orders):
        [task] = queue.push("work", [f"id-{number}"])
        queue.push("work", [f"id-{number}"])
        taken: list[Task] = []
        for step in order:
            verb, _, name = step.partition(" ")
            if verb == "look":
                polls[name].look()
            elif verb == "take":
                taken += polls[name].take()
            else:
                polls[name].queue.conn.commit()
        assert taken == [task], order
        [holder] = [poll.owner for poll in polls.values() if queue.held(poll.owner)]
        queue.complete(holder, {task: Result.SUCCESS})
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 9), Result.SUCCESS))


@pytest.mark.slow
def test_one_claim_takes_tasks_of_a_hundred_thousand_identifiers(own_queue: TaskQueue) -> None:
    """As advisory locks, these would exceed the lock table of the server."""
    own_queue.push_stream("work", (f"id-{number}" for number in range(100_000)))
    owner = own_queue.register("me")
    assert own_queue.claim("work", owner, 100_000, condition=SINGULAR) == 100_000


def test_a_poll_under_a_condition_changes_no_row_but_those_of_its_tasks(own_queue: TaskQueue) -> None:
    """It only locks what stands for an identifier, so that leaves no dead rows."""
    own_queue.push("work", [f"id-{number}" for number in range(500)])
    owner = own_queue.register("me")
    for _ in range(5):
        assert changed_rows(own_queue.conn, lambda: own_queue.poll("work", owner, 100, condition=SINGULAR)) == 100


# Many blocked identifiers


ON_FAILURE = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE
UNTIL_SUCCESS = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS
BLOCKED = 10_000
FEW = 1100  # more than one step of a poll reads
MOST_SCANS = 15_000  # the first steps of a poll check about two thousand identifiers, by three searches each


def block_identifiers(queue: TaskQueue, kind: str, number: int) -> Owner:
    """Blocks identifiers, each with a READY task behind a failed task, a held one, or a retry."""
    names = [f"customer-{place * 7919 % number:05}" for place in range(number)]
    owner = queue.register("closing", timedelta(hours=9))
    if kind == "undue":
        queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=9, base=timedelta(hours=1))))
    queue.push("work", names)
    held = queue.poll("work", owner, number)
    if kind != "held":
        queue.complete(owner, dict.fromkeys(held, Result.FAILURE))
    queue.push("work", names)
    return owner


def look(queue: TaskQueue, owner: Owner, verb: str) -> int:
    """The number of tasks that one of the verbs finds."""
    if verb == "batch":
        return sum(len(group) for group in queue.poll_batch("work", owner, 5).values())
    name, _, condition = verb.partition(" ")
    if name == "ready":
        return queue.ready("work", 5, Condition(condition))
    return len(queue.poll("work", owner, 5, Order[name], Condition(condition)))


LOOKS = {
    "failed": [
        f"FIRST_IN_FIRST_OUT {ON_FAILURE}",
        f"LAST_IN_FIRST_OUT {UNTIL_SUCCESS}",
        f"ready {ON_FAILURE}",
        "batch",
    ],
    "held": [f"FIRST_IN_FIRST_OUT {SINGULAR}", f"ready {UNTIL_SUCCESS}", "batch"],
    "undue": [f"FIRST_IN_FIRST_OUT {SINGULAR}", f"ready {ON_FAILURE}", "batch"],
}


@pytest.mark.slow
@pytest.mark.promise("Many blocked identifiers, or many tasks of one, hide no free identifier")
@pytest.mark.parametrize("kind", LOOKS)
def test_a_poll_does_not_search_an_index_for_each_of_many_blocked_identifiers(own_queue: TaskQueue, kind: str) -> None:
    """On tables that were never analyzed, and on analyzed ones."""
    block_identifiers(own_queue, kind, BLOCKED)
    owner = own_queue.register("looking")
    for prepare in ("SELECT", "VACUUM ANALYZE"):
        own_queue.conn.execute(prepare.encode())
        for verb in LOOKS[kind]:
            with own_queue.conn.transaction(force_rollback=True):
                seen = explain(own_queue.conn, partial(look, own_queue, owner, verb))
            assert seen.scans <= MOST_SCANS, (prepare, verb, seen)


@pytest.mark.slow
@pytest.mark.promise("Many blocked identifiers, or many tasks of one, hide no free identifier")
def test_a_poll_finds_the_few_free_identifiers_among_many_blocked_ones(queue: TaskQueue, owner: Owner) -> None:
    block_identifiers(queue, "failed", 3000)
    free = queue.push("work", ["a", "customer-01500-free", "z", "z", "customer-02500-free", "a"])
    assert queue.ready("work", 10, ON_FAILURE) == 4
    assert queue.ready("work", 3, ON_FAILURE) == 3
    assert queue.poll("work", owner, 10, condition=UNTIL_SUCCESS) != []
    queue.release(owner)
    owner = queue.register("next")
    assert {
        *queue.poll("work", owner, 3, condition=ON_FAILURE),
        *queue.poll("work", owner, 3, condition=ON_FAILURE),
    } == {
        *free[:3],
        free[4],
    }
    assert queue.ready("work", 10, ON_FAILURE) == 0


@pytest.mark.slow
@pytest.mark.promise("Many blocked identifiers, or many tasks of one, hide no free identifier")
def test_a_poll_passes_an_identifier_with_many_failures_without_reading_them_all(own_queue: TaskQueue) -> None:
    """The scans for blocking tasks are bounded. The remaining identifiers are checked one by one."""
    names = [f"customer-{number:05}" for number in range(FEW)]
    crowd = [names[7]] * 20_000
    owner = own_queue.register("closing", timedelta(hours=9))
    own_queue.push("work", names + crowd)
    own_queue.complete(owner, dict.fromkeys(own_queue.poll("work", owner, 30_000), Result.FAILURE))
    own_queue.push("work", names)
    [free] = own_queue.push("work", ["customer-00500-free"])
    seen = explain(own_queue.conn, lambda: own_queue.ready("work", 5, ON_FAILURE))
    assert seen.most < 15_000, seen
    assert own_queue.ready("work", 5, ON_FAILURE) == 1
    assert own_queue.poll("work", owner, 5, condition=ON_FAILURE) == [free]
