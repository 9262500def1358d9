"""Stop at first failure: while a topic's retries fail, one of them is tried at a time."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import (
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    Task,
    TaskQueue,
    TopicPolicy,
)
from tests.queue.conftest import identifiers, known, pass_time
from tests.queue.explained import changed_rows

pytestmark = pytest.mark.promise("While the retries of a topic fail, one is tried at a time, if its policy has `probe`")

MINUTE = timedelta(minutes=1)


def probing(base: timedelta = MINUTE, attempts: int = 10) -> TopicPolicy:
    """A policy with a probe and equal delays."""
    return TopicPolicy(retry=RetryPolicy(max_attempts=attempts, base=base, factor=1.0, probe=True))


def growing(attempts: int = 20) -> TopicPolicy:
    """A policy with a probe and the default delays: 1, 2, 4 ... 180 minutes."""
    return TopicPolicy(retry=RetryPolicy(max_attempts=attempts, probe=True))


@pytest.fixture
def failed(queue: TaskQueue, owner: Owner) -> list[Task]:
    """Ten tasks of a probing topic that failed once and are due again."""
    queue.alter_topic("work", probing())
    queue.push("work", [f"job-{number}" for number in range(10)])
    tasks = queue.poll("work", owner, 10)
    queue.complete(owner, dict.fromkeys(tasks, Result.FAILURE))
    pass_time(queue, 2 * MINUTE)
    return tasks


def run(queue: TaskQueue, owner: Owner, result: Result, size: int = 10) -> int:
    """Poll until no task is left, complete each task with the result, and return the number of tasks."""
    tried = 0
    while tasks := queue.poll("work", owner, size):
        tried += len(tasks)
        queue.complete(owner, dict.fromkeys(tasks, result))
    return tried


def test_a_run_tries_one_of_ten_failed_tasks_after_the_base_delay_while_the_handler_still_fails(
    queue: TaskQueue, owner: Owner, failed: list[Task]
) -> None:
    for _ in failed:
        assert queue.ready("work", 10) == 1
        assert run(queue, owner, Result.FAILURE) == 1
        assert queue.ready("work", 10) == 0
        pass_time(queue, 2 * MINUTE)
    assert {known(queue, task).attempt for task in failed} == {2}, "each had its turn"


def minutes_until_polled(queue: TaskQueue, owner: Owner, wanted: set[str], poison: str, limit: int = 400) -> int:
    """Poll once a minute until no task is left. Return the number of minutes until all wanted tasks were polled."""
    for minutes in range(limit):
        while tasks := queue.poll("work", owner):
            wanted -= {task.identifier for task in tasks}
            queue.complete(
                owner, {task: Result.FAILURE if task.identifier == poison else Result.SUCCESS for task in tasks}
            )
        if not wanted:
            return minutes
        pass_time(queue, MINUTE)
    return limit


@pytest.mark.parametrize("priority", [0, 5])
def test_a_retry_does_not_wait_for_the_growing_delay_of_the_task_that_failed(
    queue: TaskQueue, owner: Owner, priority: int
) -> None:
    queue.alter_topic("work", growing())
    [poison] = queue.push("work", [NewTask("poison", priority=priority)])
    for _ in range(8):
        queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
        pass_time(queue, known(queue, poison).available_at - queue.now())
    queue.push("work", [NewTask("healthy", priority=9)])
    tasks = queue.poll("work", owner, 2)
    assert set(identifiers(tasks)) == {"healthy", "poison"}
    queue.complete(owner, dict.fromkeys(tasks, Result.FAILURE))
    assert known(queue, poison).available_at - queue.now() > timedelta(hours=2)
    assert minutes_until_polled(queue, owner, {"healthy"}, "poison") <= 2


@pytest.mark.parametrize("size", [1, 10])
def test_failing_retries_take_turns_whatever_their_priorities(queue: TaskQueue, owner: Owner, size: int) -> None:
    """So none blocks the others."""
    queue.alter_topic("work", probing(attempts=100))
    queue.push("work", [NewTask("high", priority=9), NewTask("low", priority=-9), "middle"])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 3), Result.FAILURE))
    probes: list[str] = []
    for _ in range(6):
        pass_time(queue, MINUTE)
        [probe] = queue.poll("work", owner, size)
        queue.complete(owner, {probe: Result.FAILURE})
        assert queue.poll("work", owner, size) == []
        probes.append(probe.identifier)
    assert probes == ["high", "middle", "low"] * 2
    pass_time(queue, MINUTE)
    for name in ("high", "middle", "low"):  # those that succeed follow each other at once
        [task] = queue.poll("work", owner, 1)
        assert task.identifier == name
        queue.complete(owner, {task: Result.SUCCESS})


def test_the_next_probe_is_handed_out_as_soon_as_a_retry_becomes_due(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", probing(base=10 * MINUTE))
    one, two, three = queue.push("work", ["one", "two", "three"])
    queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
    pass_time(queue, 4 * MINUTE)
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Result.FAILURE))
    pass_time(queue, 6 * MINUTE)
    assert queue.poll("work", owner, 3) == [one]
    queue.complete(owner, {one: Result.FAILURE})
    pass_time(queue, 3 * MINUTE)
    assert queue.poll("work", owner, 3) == []
    assert queue.ready("work", 3) == 0
    pass_time(queue, MINUTE)
    assert queue.ready("work", 3) == 1
    assert queue.poll("work", owner, 3) == [two], "four minutes after the failure, and not ten"
    queue.complete(owner, {two: Result.FAILURE})
    pass_time(queue, 6 * MINUTE)
    assert queue.poll("work", owner, 3) == [three], "as the retry of another one became due"


@pytest.mark.usefixtures("failed")
def test_a_retry_that_waits_behind_other_tasks_is_promoted_once(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", [NewTask(f"new-{number}", priority=1) for number in range(3)])
    written = [changed_rows(queue.conn, lambda: queue.poll("work", owner)) for _ in range(4)]
    assert written == [3, 1, 1, 1], "the retry and the row of the probe, and then only the claimed task"
