"""The worked examples of the source systems with the verbs of TaskQ. SQL moves the clock."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_taskq.queue import (
    Decision,
    LeaseLost,
    NewTask,
    NotHeld,
    Offered,
    Outcome,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
)
from tests.internals import make_due
from tests.queue.conftest import everything, identifiers, in_second, known, lapse, pass_time, states

pytestmark = [
    pytest.mark.promise("A failure with attempts left goes back to READY, due after the delay of the policy"),
    pytest.mark.promise("An `offer` leaves at most one waiting task of an identifier"),
]

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


def test_a_failing_message_follows_the_table_of_camunda_correlate_until_it_succeeds(
    queue: TaskQueue, owner: Owner
) -> None:
    correlation(queue)
    [message] = queue.push("work", [NewTask("key", ttl=10 * SECOND)])
    schedule = Schedule(queue, message)
    for second, attempt, due in CORRELATION[:3]:
        schedule.go_to(second)
        queue.complete(owner, {queue.poll("work", owner)[0]: Result.FAILURE})
        assert (known(queue, message).attempt, schedule.due(message)) == (attempt, due)
    schedule.go_to(186)
    assert queue.poll("work", owner) == []
    schedule.go_to(192)
    [last] = queue.poll("work", owner)
    assert last.attempt == 3
    queue.complete(owner, {last: Result.SUCCESS})
    assert known(queue, message).state is State.SUCCEEDED


# Milliseconds. OpenCQRS truncates each delay before it computes the next: 22780 instead of 22781.25.
EVENT_HANDLING = [2000, 3000, 4500, 6750, 10125, 15187.5, 22781.25, 30000, 30000, 30000]


def test_event_handling_has_the_delays_of_opencqrs_to_the_millisecond(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy.event_handling()))
    queue.push("work", ["event"])
    for expected in EVENT_HANDLING:
        [task] = queue.poll("work", owner)
        before = now(queue)
        queue.complete(owner, {task: Result.FAILURE})
        after, due = now(queue), known(queue, task).available_at
        assert due - after <= expected * MILLISECOND <= due - before
        pass_time(queue, due - now(queue) - MINUTE)  # so that it is due in a minute, whatever the test took
        assert queue.poll("work", owner) == []
        pass_time(queue, MINUTE)


@pytest.mark.parametrize(("retries", "elapsed", "tries"), [(0, None, 1), (3, None, 4), (None, 9.5, 4), (None, 9.6, 5)])
def test_event_handling_counts_retries_and_adds_up_delays_as_opencqrs_does(
    queue: TaskQueue, owner: Owner, retries: int | None, elapsed: float | None, tries: int
) -> None:
    """The first three delays are 2, 3 and 4.5 s: together 9.5 s."""
    longest = None if elapsed is None else elapsed * SECOND
    queue.alter_topic("work", TopicPolicy(RetryPolicy.event_handling(max_attempts=retries, max_elapsed=longest)))
    [event] = queue.push("work", ["event"])
    for expected in range(1, tries + 1):
        [task] = queue.poll("work", owner)
        assert task.attempt == expected
        queue.complete(owner, {task: Result.FAILURE})
        pass_time(queue, MINUTE)
    assert queue.poll("work", owner) == []
    assert known(queue, event).state is State.FAILED


def test_an_event_that_is_given_up_is_skipped_and_the_next_one_handled(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy.event_handling(max_attempts=1)))
    queue.push("work", ["skipped", "next"])
    handled = []
    for _ in range(3):
        for task in queue.poll("work", owner, 2):
            handled.append(task.identifier)
            queue.complete(owner, {task: Result.FAILURE if task.identifier == "skipped" else Result.SUCCESS})
        pass_time(queue, MINUTE)
    assert handled == ["skipped", "next", "skipped"]
    assert states(queue) == [("skipped", State.FAILED), ("next", State.SUCCEEDED)]


def test_an_offer_of_a_waiting_key_updates_its_payload_and_its_schedule(queue: TaskQueue, owner: Owner) -> None:
    first = queue.offer("work", "key", "one", delay=HOUR)
    assert queue.offer("work", "key", "two", delay=MINUTE) == Offered(Outcome.UPDATED, first.sequence)
    pass_time(queue, 2 * MINUTE)
    assert [(task.sequence, task.payload) for task in queue.poll("work", owner, 9)] == [(first.sequence, "two")]
    pass_time(queue, HOUR)
    assert queue.poll("work", owner, 9) == [], "the first schedule is gone with its offer"


def test_an_offer_of_a_held_key_survives_the_acknowledgement(queue: TaskQueue, owner: Owner) -> None:
    queue.offer("work", "key", "one")
    [flying] = queue.poll("work", owner)
    again = queue.offer("work", "key", "two")
    queue.complete(owner, {flying: Result.SUCCESS})
    assert [(task.sequence, task.payload) for task in queue.poll("work", owner, 9)] == [(again.sequence, "two")]


def test_an_acknowledgement_after_the_redelivery_ends_nothing_and_one_given_twice_changes_nothing(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.offer("work", "key", "one")
    late = queue.register("late")
    [flying] = queue.poll("work", late)
    assert not flying.redelivered
    lapse(queue, late)
    queue.expire()
    [again] = queue.poll("work", owner)
    assert (again, again.redelivered) == (flying, True)
    with pytest.raises(LeaseLost):
        queue.complete(late, {flying: Result.SUCCESS})
    queue.complete(owner, {again: Result.SUCCESS})
    before = known(queue, again)
    with pytest.raises(NotHeld):
        queue.complete(owner, {again: Result.FAILURE})
    assert repr(known(queue, again)) == repr(before)


def test_a_batch_of_offers_returns_outcomes_in_its_order_and_updates_existing_keys(
    queue: TaskQueue, owner: Owner
) -> None:
    older = {task.identifier: task.sequence for task in queue.push("work", [f"key-{n}" for n in range(0, 250, 25)])}
    offered = queue.offer_many("work", [NewTask(f"key-{number}", "new") for number in range(250)])
    assert {f"key-{n}" for n, each in enumerate(offered) if each.outcome is Outcome.UPDATED} == older.keys()
    assert {f"key-{n}": each.sequence for n, each in enumerate(offered) if f"key-{n}" in older} == older
    again = queue.offer_many("work", [f"key-{number}" for number in range(250)], if_exists="ignore")
    assert {each.outcome for each in again} == {Outcome.IGNORED}
    assert len(queue.poll("work", owner, 300)) == 250
    assert queue.poll("work", owner, 0) == queue.poll("work", owner, -1) == []


def test_messages_are_handed_out_in_the_order_of_their_schedule_and_keys_are_local_to_a_queue(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.create_topic("other")
    queue.push("other", ["b"])
    for name, ago in (("a", 1), ("b", 3), ("c", 2)):
        queue.offer("work", name, name, available_at=LONG_AGO - timedelta(days=ago))
    assert identifiers(queue.poll("work", owner, 9)) == ["b", "c", "a"]
    assert queue.ready("other", 9) == 1


def test_a_message_is_read_without_a_claim_and_dropped_by_its_key(queue: TaskQueue, owner: Owner) -> None:
    offered = queue.offer("work", "key", "one")
    assert queue.latest("work", ["key", "unknown"])["key"].sequence == offered.sequence
    assert queue.latest("work", ["key"])["key"].state is State.READY
    assert queue.drop("work", "key")
    assert queue.latest("work", ["key"]) == {}
    assert queue.poll("work", owner) == []
    assert not queue.drop("work", "key")


def test_a_key_of_a_schedule_is_stored_once_and_never_changed(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    """This holds for waiting, held and ended ticks. Another configuration removes only waiting ticks."""
    ticks = [(LONG_AGO + HOUR * hour, f"{hour} o'clock") for hour in range(4)]
    assert queue.install_ticks("work", "report", "v1", ticks) == 4
    ended, flying = queue.poll("work", owner, 2)
    queue.complete(owner, {ended: Result.SUCCESS})
    before = [repr(info) for info in everything(queue)]
    again = [(moment, NewTask("", "changed", available_at=LONG_AGO, priority=9)) for moment, _ in ticks]
    other = open_queue()
    assert other.install_ticks("work", "report", "v1", again) == 0
    other.conn.commit()  # schedulers of one prefix come one after the other
    assert queue.install_ticks("work", "report", "v1", again) == 0
    assert queue.install_ticks("work", "report", "v1", []) == 0
    assert [repr(info) for info in everything(queue)] == before
    assert queue.install_ticks("work", "report", "v2", again[:1]) == 1
    assert [name.split("/")[1] for name, state in states(queue) if state is State.READY] == ["v2"]
    queue.complete(owner, {flying: Result.SUCCESS})
    assert {known(queue, task).state for task in (ended, flying)} == {State.SUCCEEDED}
