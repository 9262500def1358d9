"""Many blocked identifiers at once: the cost of an empty poll, and that it never hides a task."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Order,
    Owner,
    Result,
    RetryPolicy,
    TaskQueue,
    TopicPolicy,
)
from tests.queue.explained import explain

pytestmark = pytest.mark.promise("Many blocked identifiers, or many tasks of one, hide no free identifier")

SINGULAR = Condition.SINGULAR_BY_IDENTIFIER
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


@pytest.fixture(params=[True, False], ids=["analyzed", "never analyzed"])
def analyzed(request: pytest.FixtureRequest, own_queue: TaskQueue) -> Callable[[], None]:
    """Analyzes the tables in one of the two variants of a test."""

    def analyze() -> None:
        if request.param:
            own_queue.conn.execute("VACUUM ANALYZE")

    return analyze


@pytest.mark.parametrize("kind", LOOKS)
def test_a_poll_does_not_search_an_index_for_each_of_many_blocked_identifiers(
    own_queue: TaskQueue, kind: str, analyzed: Callable[[], None]
) -> None:
    block_identifiers(own_queue, kind, BLOCKED)
    analyzed()
    owner = own_queue.register("looking")
    for verb in LOOKS[kind]:
        with own_queue.conn.transaction(force_rollback=True):
            seen = explain(own_queue.conn, partial(look, own_queue, owner, verb))
        assert seen.scans <= MOST_SCANS, (verb, seen)


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
