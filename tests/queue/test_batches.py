"""Batches by identifier: whole groups, and the tasks that keep a group back."""

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    LeaseLost,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
    UnknownTopic,
)
from tests.internals import make_due
from tests.queue.conftest import in_second, known, lapse, pass_time, states, task_in

pytestmark = pytest.mark.promise("A batch by identifier has all due tasks of its group, and goes to one owner")

retrying = TopicPolicy(retry=RetryPolicy(max_attempts=2, base=timedelta(minutes=1)))


def sizes(queue: TaskQueue, owner: Owner, identifiers: int = 10, size: int = -1) -> dict[str, int]:
    """The identifiers that a poll of batches returns, in order, with the number of their tasks."""
    return {name: len(group) for name, group in queue.poll_batch("work", owner, identifiers, size).items()}


def test_a_batch_is_all_due_tasks_of_an_identifier_in_order(queue: TaskQueue, owner: Owner) -> None:
    tasks = queue.push("work", ["b", "a", NewTask("b", priority=1), "b", NewTask("b", delay=timedelta(hours=1)), "c"])
    assert queue.poll_batch("work", owner) == {"b": [tasks[2], tasks[0], tasks[3]]}
    assert [task.attempt for task in queue.held(owner)] == [1, 1, 1]
    assert list(sizes(queue, owner, 5).items()) == [("a", 1), ("c", 1)]
    assert queue.poll_batch("work", owner) == {}


@pytest.mark.parametrize(("size", "handed_out"), [(-1, 3), (1, 1), (2, 2), (5, 3), (0, 0)])
def test_the_size_bounds_the_tasks_of_each_group(queue: TaskQueue, owner: Owner, size: int, handed_out: int) -> None:
    queue.push("work", ["a"] * 3)
    assert sizes(queue, owner, size=size) == ({"a": handed_out} if handed_out else {})
    if handed_out:
        assert sizes(queue, owner) == {}, "the rest of the group waits for its ACTIVE tasks"


def test_a_group_with_a_retry_that_is_not_due_is_handed_out_whole_once_it_is_due(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", retrying)
    queue.push("work", ["a"])
    [[task]] = queue.poll_batch("work", owner).values()
    queue.complete(owner, {task: Result.FAILURE})
    queue.push("work", ["a", "b"])
    assert sizes(queue, owner) == {"b": 1}
    pass_time(queue, timedelta(minutes=2))
    assert sizes(queue, owner) == {"a": 2}


def test_no_task_of_a_group_overtakes_its_retries(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", retrying)
    tasks = queue.push("work", ["a"] * 3)
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 2), Result.FAILURE))
    queue.push("work", [NewTask("a", priority=1)])
    pass_time(queue, timedelta(minutes=2))
    assert queue.poll_batch("work", owner, size=2) == {"a": tasks[:2]}
    queue.release(owner)
    [group] = queue.poll_batch("work", queue.register(owner.name)).values()
    assert [task.attempt for task in group] == [2, 2, 1, 1]
    assert group[:2] == tasks[:2]


@pytest.mark.parametrize("state", [state for state in State if state >= State.FAILED], ids=lambda state: state.name)
def test_a_group_is_held_back_by_a_failed_task_only_until_the_task_is_revived(
    queue: TaskQueue, owner: Owner, state: State
) -> None:
    ended = task_in(queue, owner, state, "a")
    queue.push("work", ["a"])
    if state is State.FAILED:
        assert sizes(queue, owner) == {}
        queue.revive("work", sequences=[ended.sequence])
    assert sizes(queue, owner) == {"a": 2 if state is State.FAILED else 1}


def test_a_paused_topic_hands_out_no_batch_and_a_lapsed_owner_gets_none(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a"])
    queue.pause_topic("work")
    assert sizes(queue, owner) == {}
    queue.resume_topic("work")
    lapse(queue, owner)
    with pytest.raises(LeaseLost):
        queue.poll_batch("work", owner)
    with pytest.raises(UnknownTopic):
        queue.poll_batch("nowhere", owner)
    assert states(queue) == [("a", State.READY)]


# The worked example of camunda-bpm-correlate


SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def now(queue: TaskQueue) -> datetime:
    """The current time of the server's clock."""
    row = queue.conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


class Schedule:
    """The time since the first push, in seconds, without the time that the test itself takes."""

    def __init__(self, queue: TaskQueue, first: Task) -> None:
        self.queue, self.first, self.at = queue, first, 0

    def go_to(self, second: int) -> None:
        """Lets time pass until this second, equally for every task."""
        moved = timedelta(seconds=second) - (now(self.queue) - known(self.queue, self.first).created)
        pass_time(self.queue, moved)
        self.at = second

    def due(self, task: Task) -> int | None:
        """The second in which a failed task is due again, to which the clock is moved; None if it is not retried."""
        info, start = known(self.queue, task), known(self.queue, self.first).created
        if info.state is not State.READY or not info.attempt:
            return None
        second = in_second(self.queue, task, self.at, start)
        make_due(self.queue.conn, start + second * SECOND, [task.sequence])
        return second


def correlation(queue: TaskQueue) -> None:
    """Sets the policy of the guide of camunda-bpm-correlate: delays of at most 10 min, 5 retries, base 2."""
    queue.alter_topic("work", TopicPolicy(RetryPolicy.correlation(max_backoff=10 * MINUTE, max_retries=5)))


# When it was tried, the attempts counted by then, and when it is due again. TTL 10 s, a poll every 6 s.
CORRELATION = [(6, 0, None), (12, 1, 72), (72, 2, 192), (192, 3, 432), (432, 4, 600), (600, 5, None)]


@pytest.mark.promise("A failure with attempts left goes back to READY, due after the delay of the policy")
@pytest.mark.promise("An `offer` leaves at most one waiting task of an identifier")
def test_a_failing_batch_follows_the_table_of_camunda_correlate_and_later_messages_wait_behind_it(
    queue: TaskQueue, owner: Owner
) -> None:
    """A second message of the same key arrives after 18 s, and waits for each retry of the first one."""
    correlation(queue)
    [first] = queue.push("work", [NewTask("key", "first", ttl=10 * SECOND)])
    schedule = Schedule(queue, first)
    reported: list[tuple[int, int, int | None]] = []
    seen: list[tuple[int, list[object]]] = []
    for second in range(6, 660, 6):
        schedule.go_to(second)
        if second == 18:
            queue.push("work", [NewTask("key", "second", ttl=HOUR)])  # whose failures are not recorded
        for group in queue.poll_batch("work", owner).values():
            seen.append((second, [task.payload for task in group]))
            queue.complete(owner, dict.fromkeys(group, Decision(Result.FAILURE, error=f"at {second}")))
            reported.append((second, known(queue, first).attempt, schedule.due(first)))
    assert reported == CORRELATION
    assert seen == [(6, ["first"]), (12, ["first"])] + [(second, ["first", "second"]) for second in (72, 192, 432, 600)]
    info = known(queue, first)
    assert (info.state, info.status, info.error) == (State.FAILED, "exhausted", "at 600")
    schedule.go_to(7200)
    assert queue.poll_batch("work", owner) == {}, "the failed task holds the key back until an operator acts"
    queue.purge("work")
    assert [len(group) for group in queue.poll_batch("work", owner).values()] == [1]
