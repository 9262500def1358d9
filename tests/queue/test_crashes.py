"""Crashes: what was held when a process died is tried in smaller groups, until the cause is alone and is FAILED."""

from collections.abc import Callable

import pytest

from airflow_provider_taskq.queue import Condition, Owner, Result, State, Task, TaskQueue
from tests.queue.conftest import everything, known, lapse, states

pytestmark = pytest.mark.promise("a task kills its process")

Crash = Callable[[TaskQueue, Owner], object]


def expire(queue: TaskQueue, owner: Owner) -> object:
    lapse(queue, owner)
    return queue.expire()


CRASHES: dict[str, Crash] = {
    "the lease lapses": expire,
    "the name registers again": lambda queue, owner: queue.register(owner.name, resume=False),
    "it is released": lambda queue, owner: queue.release(owner, crashed=True),
}
Claim = Callable[[TaskQueue, Owner], list[Task]]
CLAIMS: dict[str, Claim] = {
    "poll": lambda queue, owner: queue.poll("work", owner, 100),
    "claim": lambda queue, owner: queue.held(owner) if queue.claim("work", owner, 100) else [],
    "poll by identifier": lambda queue, owner: queue.poll(
        "work", owner, 100, condition=Condition.SINGULAR_BY_IDENTIFIER
    ),
    "poll_batch": lambda queue, owner: [
        task for group in queue.poll_batch("work", owner, 100).values() for task in group
    ],
}


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_the_cause_of_crashes_is_found_at_its_last_permitted_crash(
    queue: TaskQueue, claim: Claim, crash: Crash
) -> None:
    """The place of the cause is in the middle: others come before it and behind it."""
    tasks = queue.push("work", [f"item-{number}" for number in range(100)])
    sizes, crashes = [], 0
    owner = queue.register("me")
    while held := claim(queue, owner):
        sizes.append(len(held))
        if tasks[57] in held:
            crash(queue, owner)
            crashes += 1
            owner = queue.register("me")
        else:
            queue.complete(owner, dict.fromkeys(held, Result.SUCCESS))
    assert crashes == 3
    assert [info.sequence for info in everything(queue) if info.state is State.FAILED] == [tasks[57].sequence]
    assert [info.state for info in everything(queue)].count(State.SUCCEEDED) == 99
    assert sizes == [100, *[10] * 6, *[1] * 10, *[10] * 4]
    culprit = known(queue, tasks[57])
    assert (culprit.crashes, culprit.attempt) == (3, 0)
    assert "while it held this task alone" in (culprit.error or "")


def test_a_task_is_not_failed_by_the_crashes_of_owners_that_held_it_with_others(queue: TaskQueue) -> None:
    queue.alter_topic("work", max_crashes=1)
    tasks = queue.push("work", ["a", "b"])
    owner = queue.register("me")
    assert queue.poll("work", owner, 10) == tasks
    queue.register("me", resume=False)
    assert states(queue) == [("a", State.READY), ("b", State.READY)]
    owner = queue.register("me")
    assert queue.poll("work", owner, 10) == tasks[:1]
    assert queue.poll("work", owner, 10) == [], "not while the owner holds another task"
    assert queue.max_claim(owner) == 1
    queue.register("me", resume=False)
    assert states(queue) == [("a", State.FAILED), ("b", State.READY)]


@pytest.mark.parametrize(("tasks", "most", "rest"), [(3, 1, 1), (10_000, 100, 1), (12_000, 120, 2)])
def test_a_crash_makes_at_most_a_hundred_groups(queue: TaskQueue, tasks: int, most: int, rest: int) -> None:
    queue.push_stream("work", (f"{number}" for number in range(tasks)))
    owner = queue.register("me")
    for size in (tasks, most, rest):
        assert queue.claim("work", owner, tasks) == size
        owner = queue.register("me", resume=False)


def test_a_claim_mixes_no_crashed_task_with_others(queue: TaskQueue) -> None:
    crashed = queue.push("work", ["a", "b", "c", "d"])
    owner = queue.register("me")
    queue.poll("work", owner, 10)
    queue.release(owner, crashed=True)
    later = queue.push("work", ["e", "f"])
    owner, other = queue.register("me"), queue.register("other")
    assert queue.poll("work", owner, 10) == crashed[:2]
    assert queue.poll("work", other, 10) == crashed[2:]
    queue.complete(other, dict.fromkeys(crashed[2:], Result.SUCCESS))
    assert queue.poll("work", other, 10) == later
    assert queue.max_claim(other) is None
