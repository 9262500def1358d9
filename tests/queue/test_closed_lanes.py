"""Many identifiers that are left out at once: what an empty look costs, and that it never hides a task."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    LeaseLost,
    NewTask,
    Order,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
    connect,
)
from tests.queue.conftest import lapse, until
from tests.queue.explained import explain

SINGULAR = Condition.SINGULAR_BY_IDENTIFIER
ON_FAILURE = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE
UNTIL_SUCCESS = Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_UNTIL_SUCCESS
LANES = 10_000
FEW = 1100  # more than one step of a look reads
MOST_SCANS = 15_000  # the first steps of a look take some two thousand lanes one by one, by three searches each


def close_lanes(queue: TaskQueue, kind: str, number: int) -> Owner:
    """Makes lanes that are left out, with a READY task each: behind a failed task, a held one, or one to be retried."""
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
    """How many tasks one of the verbs finds."""
    if verb == "batch":
        return sum(len(group) for group in queue.poll_batch("work", owner, 5).values())
    name, _, condition = verb.partition(" ")
    if name == "ready":
        return queue.ready("work", 5, Condition(condition))
    return len(queue.poll("work", owner, 5, Order[name], Condition(condition)))


LOOKS = [
    ("failed", f"FIRST_IN_FIRST_OUT {ON_FAILURE}"),
    ("failed", f"LAST_IN_FIRST_OUT {UNTIL_SUCCESS}"),
    ("failed", f"ready {ON_FAILURE}"),
    ("failed", "batch"),
    ("held", f"FIRST_IN_FIRST_OUT {SINGULAR}"),
    ("held", f"ready {UNTIL_SUCCESS}"),
    ("held", "batch"),
    ("undue", f"FIRST_IN_FIRST_OUT {SINGULAR}"),
    ("undue", f"ready {ON_FAILURE}"),
    ("undue", "batch"),
]


@pytest.fixture(params=[True, False], ids=["analyzed", "never analyzed"])
def analyzed(request: pytest.FixtureRequest, own_queue: TaskQueue) -> Callable[[], None]:
    """Analyzes the tables, or does not."""

    def analyze() -> None:
        if request.param:
            own_queue.conn.execute("VACUUM ANALYZE")

    return analyze


@pytest.mark.parametrize(("kind", "verb"), LOOKS)
def test_a_look_searches_no_index_for_each_of_many_closed_lanes(
    own_queue: TaskQueue, kind: str, verb: str, analyzed: Callable[[], None]
) -> None:
    close_lanes(own_queue, kind, LANES)
    analyzed()
    owner = own_queue.register("looking")
    seen = explain(own_queue.conn, lambda: look(own_queue, owner, verb))
    assert seen.scans <= MOST_SCANS, seen


@pytest.mark.parametrize(("kind", "verb"), LOOKS)
def test_a_second_look_in_vain_reads_almost_nothing_while_nothing_changes(
    own_queue: TaskQueue, kind: str, verb: str
) -> None:
    close_lanes(own_queue, kind, FEW)
    owner = own_queue.register("looking")

    def is_cheap() -> bool:
        return explain(own_queue.conn, lambda: look(own_queue, owner, verb)).scans < 50

    assert not is_cheap()
    until(is_cheap)  # other databases of the server change its snapshot, too


def test_a_poll_after_a_long_one_in_vain_writes_nothing(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    close_lanes(queue, "failed", FEW)
    written = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL"
    for expected in (True, False, False):
        assert session.poll("work", owner, 5, condition=ON_FAILURE) == []
        assert session.conn.execute(written.encode()).fetchone() == (expected,)
        session.conn.commit()


def test_few_free_lanes_are_found_behind_and_among_many_closed_ones(queue: TaskQueue, owner: Owner) -> None:
    close_lanes(queue, "failed", 3000)
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


def test_a_lane_with_many_failures_is_passed_without_reading_them_all(own_queue: TaskQueue) -> None:
    """The scans for what closes lanes are bounded, and the lanes that are left are checked one by one."""
    names = [f"customer-{number:05}" for number in range(FEW)]
    crowd = [names[7]] * 20_000
    owner = own_queue.register("closing", timedelta(hours=9))
    own_queue.push("work", names + crowd)
    own_queue.complete(owner, dict.fromkeys(own_queue.poll("work", owner, 30_000), Result.FAILURE))
    own_queue.push("work", names)
    [free] = own_queue.push("work", ["customer-00500-free"])
    seen = explain(own_queue.conn, lambda: own_queue.ready("work", 5, ON_FAILURE))
    assert seen.rows["ended", "ended_troubled"] < 15_000, seen
    assert own_queue.ready("work", 5, ON_FAILURE) == 1
    assert own_queue.poll("work", owner, 5, condition=ON_FAILURE) == [free]


VERBS = [f"ready {ON_FAILURE}", f"FIRST_IN_FIRST_OUT {ON_FAILURE}", f"LAST_IN_FIRST_OUT {UNTIL_SUCCESS}", "batch"]


@pytest.fixture(params=VERBS)
def idle(request: pytest.FixtureRequest, queue: TaskQueue, dsn: str) -> Iterator[Callable[[], int]]:
    """A look by a session of its own, which has looked at many closed lanes in vain several times."""
    close_lanes(queue, "failed", FEW)
    owner = queue.register("idle")
    with connect(dsn, autocommit=True) as conn:
        again = partial(look, TaskQueue(conn), owner, request.param)
        assert [again() for _ in range(4)] == [0, 0, 0, 0]
        yield again


def test_after_a_look_in_vain_a_new_task_is_found_at_once(queue: TaskQueue, idle: Callable[[], int]) -> None:
    queue.push("work", ["new"])
    assert idle() == 1


def test_after_a_look_in_vain_the_push_of_a_transaction_that_was_open_is_found_at_once(
    session: TaskQueue, idle: Callable[[], int]
) -> None:
    session.push("work", ["new"])
    assert [idle() for _ in range(4)] == [0, 0, 0, 0]
    session.conn.commit()
    assert idle() == 1


def test_after_a_look_in_vain_a_task_is_found_that_is_due_by_time_alone(
    queue: TaskQueue, idle: Callable[[], int]
) -> None:
    queue.push(
        "work", [NewTask("new", delay=timedelta(seconds=1), priority=7), NewTask("late", delay=timedelta(hours=1))]
    )
    until(lambda: idle() == 1)


def test_after_a_look_in_vain_a_retry_is_found_that_is_due_by_time_alone(
    queue: TaskQueue, idle: Callable[[], int]
) -> None:
    queue.alter_topic("work", TopicPolicy(retry=RetryPolicy(max_attempts=9, base=timedelta(seconds=1))))
    queue.push("work", ["new"])
    failing = queue.register("failing")
    [task] = queue.poll("work", failing, condition=ON_FAILURE)
    queue.complete(failing, {task: Result.FAILURE})
    until(lambda: idle() == 1)


def test_after_a_look_in_vain_the_lane_of_a_revived_task_is_found_at_once(
    queue: TaskQueue, idle: Callable[[], int]
) -> None:
    [failed] = queue.page("work", state=State.FAILED, size=1)
    queue.reassign("work", Result.SUCCESS, sequences=[failed.sequence])
    assert idle() == 1


def test_after_a_look_in_vain_the_lane_of_a_purged_task_is_found_at_once(
    queue: TaskQueue, idle: Callable[[], int]
) -> None:
    [failed] = queue.page("work", state=State.FAILED, size=1)
    queue.purge("work", failed.sequence, failed.sequence, State.FAILED)
    assert idle() == 1


@pytest.mark.parametrize("end", ["complete", "release", "expire"])
def test_after_a_look_in_vain_a_lane_is_found_at_once_whose_task_is_held_no_longer(
    queue: TaskQueue, owner: Owner, idle: Callable[[], int], end: str
) -> None:
    queue.push("work", ["new", "new"])
    [first] = queue.poll("work", owner, condition=ON_FAILURE)
    assert [idle() for _ in range(4)] == [0, 0, 0, 0]
    if end == "complete":
        queue.complete(owner, {first: Result.SUCCESS})
    elif end == "release":
        queue.release(owner)
    else:
        lapse(queue, owner)
        queue.expire()
    assert idle() > 0


@pytest.mark.parametrize("savepoint", [False, True], ids=["whole", "to a savepoint"])
def test_after_a_look_in_vain_a_lane_is_found_at_once_that_another_poll_gives_back(
    queue: TaskQueue, owner: Owner, session: TaskQueue, idle: Callable[[], int], savepoint: bool
) -> None:
    queue.push("work", ["new"])
    if savepoint:
        session.register("open")  # so that the transaction stays in progress
        session.conn.execute("SAVEPOINT polled")
    assert len(session.poll("work", owner, condition=ON_FAILURE)) == 1
    assert [idle() for _ in range(4)] == [0, 0, 0, 0]
    session.conn.execute("ROLLBACK TO polled" if savepoint else "ROLLBACK")
    assert idle() == 1


def test_after_a_look_in_vain_a_transaction_finds_what_it_pushed_itself(queue: TaskQueue, session: TaskQueue) -> None:
    close_lanes(queue, "failed", FEW)
    owner = queue.register("idle")
    for verb in VERBS:
        assert [look(session, owner, verb) for _ in range(4)] == [0, 0, 0, 0]
        session.push("work", ["new"])
        assert look(session, owner, verb) == 1
        session.conn.rollback()
        assert look(session, owner, verb) == 0


def test_after_a_look_in_vain_a_poll_is_refused_once_the_lease_is_gone(queue: TaskQueue, session: TaskQueue) -> None:
    close_lanes(queue, "failed", FEW)
    owner = queue.register("idle")
    for _ in range(3):
        assert session.poll("work", owner, condition=ON_FAILURE) == []
        session.conn.commit()
    lapse(queue, owner)
    with pytest.raises(LeaseLost):
        session.poll("work", owner, condition=ON_FAILURE)


def test_after_a_look_in_vain_a_dependent_is_found_once_it_may_go_out(
    queue: TaskQueue, owner: Owner, idle: Callable[[], int]
) -> None:
    queue.create_topic("first")
    queue.push("first", ["basis"])
    queue.push("work", [NewTask("new", depends_on=[("first", "basis")])])
    assert idle() == 0
    queue.complete(owner, dict.fromkeys(queue.poll("first", owner), Result.SUCCESS))
    assert idle() == 1
