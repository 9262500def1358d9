"""Upkeep: expires lapsed leases and removes tasks by the policies of their topics, in short calls that never wait."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Cursor,
    Insertion,
    MaintenanceResult,
    NewTask,
    Owner,
    Result,
    Revival,
    Severity,
    State,
    Task,
    TaskQueue,
    UnknownTopic,
)
from tests.internals import age_upkeep, store_tasks, stored_rows
from tests.queue.conftest import everything, keeps_expired, known, lapse, numbered, pass_time, states, task_in
from tests.queue.test_health import found
from tests.queue.test_sessions import pages_of

pytestmark = pytest.mark.promise("Upkeep removes a task only after the time that its topic says")

DAY = timedelta(days=1)
BOTH: dict[str, Any] = {"keep_succeeded": DAY, "keep_failed": DAY}
OF_A_TOPIC, OF_A_CALL = 500, 2_000
SUCCEEDED = {State.SUCCEEDED, State.FILTERED, State.RECREATED, State.REDUNDANT}


def run(queue: TaskQueue, *, walks_again: bool = True) -> int:
    """Carry out a run, as if the last one was long ago. Return how many tasks it has removed.

    Without `walks_again`, only a thousandth of the retention has passed, in which a walk pauses, and not the twentieth
    after which it begins again.
    """
    age_upkeep(queue.conn, DAY if walks_again else DAY / 1_000)
    calls = [queue.maintain()]
    while calls[-1].more:
        calls.append(queue.maintain())
    return sum(call.purged for call in calls)


def ended(queue: TaskQueue, owner: Owner, *identifiers: str, result: Result = Result.SUCCESS) -> list[Task]:
    """Pushes tasks, and ends all READY ones with this result."""
    tasks = queue.push("work", identifiers)
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, 10), result))
    return tasks


def left(queue: TaskQueue, topic: str = "work") -> list[str]:
    """The identifiers of the stored tasks, in order of sequence."""
    return [identifier for identifier, _ in states(queue, topic)]


# What is removed, and when.


@pytest.mark.parametrize(
    ("policy", "removed"),
    [
        ({}, set()),
        ({"keep_succeeded": DAY}, SUCCEEDED),
        ({"keep_failed": DAY}, {State.FAILED}),
        (BOTH, {*SUCCEEDED, State.FAILED}),
    ],
    ids=["neither", "keep_succeeded", "keep_failed", "both"],
)
def test_each_retention_removes_the_states_that_it_covers_and_no_other(
    queue: TaskQueue, owner: Owner, policy: dict[str, Any], removed: set[State]
) -> None:
    queue.create_topic("other", **policy)
    for topic in ("work", "other"):
        for state in (*(state for state in State if state is not State.READY), State.READY):
            task_in(queue, owner, state, state.name, topic)
    pass_time(queue, 2 * DAY)
    assert run(queue) == len(removed)
    assert {state for _, state in states(queue, "other")} == set(State) - removed
    assert len(states(queue)) == len(State)


@pytest.mark.parametrize("state", [State.FAILED, State.EXPIRED])
@pytest.mark.parametrize("revival", [Revival.APPEND, Insertion.REPLACE])
def test_a_task_that_failed_before_it_was_recreated_or_replaced_is_kept_as_a_failed_one(
    queue: TaskQueue, owner: Owner, state: State, revival: Revival | Insertion
) -> None:
    task = task_in(queue, owner, state)
    if isinstance(revival, Revival):
        queue.revive("work", state, revival)
    else:
        queue.push("work", ["a"], revival)
    pass_time(queue, 2 * DAY)
    queue.alter_topic("work", keep_succeeded=DAY)
    assert run(queue) == 0
    queue.alter_topic("work", keep_failed=DAY)
    assert run(queue) == 1
    assert queue.task("work", task.sequence) is None


def test_the_time_counts_from_the_end_of_a_task_and_not_from_its_push(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", **BOTH)
    queue.push("work", ["a", "b"])
    pass_time(queue, 10 * DAY)
    queue.complete(owner, dict(zip(queue.poll("work", owner, 2), [Result.SUCCESS, Result.FAILURE], strict=True)))
    assert run(queue) == 0
    pass_time(queue, DAY - timedelta(minutes=1))
    assert run(queue) == 0
    pass_time(queue, timedelta(minutes=2))
    assert run(queue) == 2
    ended(queue, owner, "c")
    assert run(queue) == 0
    queue.alter_topic("work", keep_succeeded=0)
    assert run(queue) == 1


def test_the_time_of_a_task_that_was_displaced_counts_from_the_push_that_displaced_it(queue: TaskQueue) -> None:
    queue.alter_topic("work", **BOTH)
    queue.push("work", [NewTask("a", delay=20 * DAY)])
    pass_time(queue, 10 * DAY)
    queue.push("work", ["a"], Insertion.SUPERSEDE)
    assert states(queue) == [("a", State.REDUNDANT), ("a", State.READY)]
    assert run(queue) == 0
    pass_time(queue, 2 * DAY)
    assert run(queue) == 1
    assert states(queue) == [("a", State.READY)]


def test_a_later_walk_removes_what_ended_after_the_last_had_passed_it_and_one_of_a_new_retention_what_it_kept(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", keep_succeeded=DAY)
    [late] = queue.push("work", ["late"])
    assert queue.poll("work", owner) == [late]
    ended(queue, owner, "early")
    ended(queue, owner, "failed", result=Result.FAILURE)
    pass_time(queue, 2 * DAY)
    assert run(queue) == 1
    queue.complete(owner, {late: Result.SUCCESS})
    pass_time(queue, 2 * DAY)
    assert run(queue, walks_again=False) == 0
    assert run(queue) == 1
    queue.alter_topic("work", keep_failed=DAY)
    assert run(queue, walks_again=False) == 1


def test_nothing_is_left_of_a_removed_task_or_of_a_dropped_topic(queue: TaskQueue, owner: Owner) -> None:
    empty = stored_rows(queue.conn).keys()
    queue.create_topic("walked", **BOTH)
    run(queue)
    before = stored_rows(queue.conn).keys()
    queue.push("walked", ["first"])
    queue.complete(owner, dict.fromkeys(queue.poll("walked", owner), Result.SUCCESS))
    queue.push("walked", [NewTask("a", depends_on=[("walked", "first")])])
    queue.complete(owner, dict.fromkeys(queue.poll("walked", owner), Result.FAILURE))
    pass_time(queue, 2 * DAY)
    assert run(queue) == 2
    assert stored_rows(queue.conn).keys() == before
    queue.drop_topic("walked")
    assert stored_rows(queue.conn).keys() == empty


# What stays, because something waits for it.


@pytest.mark.promise("No removal changes which tasks run later")
def test_a_task_that_a_consumer_group_has_not_handled_stays(queue: TaskQueue, owner: Owner) -> None:
    """The slowest of all groups decides."""
    queue.alter_topic("work", **BOTH)
    first, second, third = ended(queue, owner, "a", "b", "c")
    lease = queue.acquire_partition("group", "work", queue.register("member", 9 * DAY))
    assert lease is not None
    pass_time(queue, 2 * DAY)
    assert run(queue) == 0
    batch = queue.read_partition(lease, 2)
    assert [event.sequence for _, event in batch] == [first.sequence, second.sequence]
    queue.advance("slow", "work", 0, Cursor(second.sequence))
    queue.advance("slow", "work", 1, Cursor(first.sequence))
    assert queue.advance_partition(lease, batch.after, Cursor(second.sequence))
    assert run(queue, walks_again=False) == 1
    queue.forget_group("slow", "work")
    assert run(queue, walks_again=False) == 1
    assert left(queue) == ["c"]
    assert [event.sequence for _, event in queue.read_partition(lease)] == [third.sequence]
    queue.release_partition(lease)
    queue.forget_group("group", "work")
    assert run(queue, walks_again=False) == 1


@pytest.mark.promise("No removal changes which tasks run later")
def test_a_failed_task_for_which_a_dependent_waits_stays(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", **BOTH)
    [failed] = ended(queue, owner, "a", result=Result.FAILURE)
    queue.create_topic("next")
    [dependent] = queue.push("next", [NewTask("dependent", depends_on=[("work", "a")])])
    pass_time(queue, 2 * DAY)
    assert run(queue) == 0
    assert queue.poll("next", owner) == []
    queue.reassign("work", Result.SUCCESS, sequences=[failed.sequence])
    assert queue.poll("next", owner) == [dependent]
    [later] = queue.push("next", [NewTask("later", depends_on=[("work", "a")])])
    assert run(queue) == 1
    assert known(queue, dependent, "next").state is State.ACTIVE
    assert queue.poll("next", owner) == [later], "a removed success fulfills a dependency as before"


@pytest.mark.promise("No removal changes which tasks run later")
def test_the_latest_task_of_an_identifier_stays_while_an_older_one_does(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", keep_succeeded=DAY)
    ended(queue, owner, "a", result=Result.FAILURE)
    [latest] = ended(queue, owner, "a")
    pass_time(queue, 2 * DAY)
    assert run(queue) == 0
    assert queue.latest("work", ["a"])["a"].sequence == latest.sequence
    queue.push("work", ["a"])
    assert run(queue) == 1
    assert states(queue) == [("a", State.FAILED), ("a", State.READY)]


@pytest.mark.promise("No removal changes which tasks run later")
def test_a_failure_stays_while_it_may_hold_back_its_identifier(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", **BOTH)
    ended(queue, owner, "a", "b", result=Result.FAILURE)
    queue.push("work", ["a"])
    pass_time(queue, 2 * DAY)
    assert run(queue) == 1
    assert states(queue) == [("a", State.FAILED), ("a", State.READY)]
    assert queue.poll("work", owner, 1, condition=Condition.SINGULAR_BY_IDENTIFIER_SUSPEND_ON_FAILURE) == []
    ended(queue, owner)  # polls without a condition that suspends, so the failure holds nothing back
    queue.push("work", ["a"])
    pass_time(queue, 2 * DAY)
    assert run(queue) == 2
    assert states(queue) == [("a", State.READY)]


# How much a call does, and when.


def test_tasks_are_removed_at_most_once_a_minute_whichever_session_calls(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    queue.alter_topic("work", **BOTH)
    assert queue.maintain() == MaintenanceResult(0, 0, more=False)
    ended(queue, owner, "a")
    pass_time(queue, 2 * DAY)
    assert [each.maintain().purged for each in (queue, session, queue)] == [0, 0, 0]
    session.conn.rollback()
    queue.alter_topic("work", keep_succeeded=DAY / 2)  # from now on the next run removes the task
    task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner)
    assert queue.maintain() == MaintenanceResult(expired=1, purged=0, more=False), "leases end more often"
    age_upkeep(queue.conn, timedelta(minutes=1))
    assert queue.maintain().purged == 1


@pytest.mark.promise("Upkeep takes milliseconds and waits for no session")
@pytest.mark.slow
def test_a_call_removes_a_bounded_number_of_tasks_and_each_topic_has_its_turn(own_queue: TaskQueue) -> None:
    queue, owner = own_queue, own_queue.register("owner")
    kept = {f"topic {number}": 1_200 for number in range(6)}
    for topic in kept:
        queue.create_topic(topic, keep_succeeded=DAY)
        queue.push_stream(topic, numbered(1_200))
        queue.complete(owner, dict.fromkeys(queue.poll(topic, owner, 1_200), Result.SUCCESS))
    pass_time(queue, 2 * DAY)
    more, calls, turns = True, 0, Counter(dict.fromkeys(kept, 0))
    while more:
        done = queue.maintain()
        purged, more, calls = done.purged, done.more, calls + 1
        now = {topic: queue.count_tasks(topic) for topic in kept}
        assert purged == sum(kept.values()) - sum(now.values()) <= OF_A_CALL
        assert all(kept[topic] - now[topic] <= OF_A_TOPIC for topic in kept)
        turns.update(topic for topic in kept if now[topic] < kept[topic])  # on a busy machine a turn may end early
        waiting = [turns[topic] for topic in kept if now[topic]]
        assert max(turns.values()) <= min(waiting, default=calls) + 1, "none has a second turn before all had one"
        assert more is any(now.values()) or purged > 0
        kept = now
    assert not any(kept.values())
    assert calls >= 6 * 1_200 / OF_A_CALL


@pytest.mark.slow
@pytest.mark.parametrize("old", [State.SUCCEEDED, State.FAILED], ids=["to remove", "to keep"])
def test_a_call_reads_few_pages_of_a_history_of_any_length(own_queue: TaskQueue, old: State) -> None:
    queue, count = own_queue, 100_000
    store_tasks(queue.conn, 1, count, states=[old], age=2 * DAY)
    queue.alter_topic("work", keep_succeeded=DAY)
    queue.maintain()  # as a first call it reads the catalog
    calls: list[MaintenanceResult] = []
    while not calls or calls[-1].more:
        assert pages_of(queue, lambda: calls.append(queue.maintain())) < 100 * OF_A_TOPIC
    assert sum(call.purged for call in calls) + OF_A_TOPIC >= (count if old is State.SUCCEEDED else 0)
    assert queue.count_tasks("work") == (0 if old is State.SUCCEEDED else count)
    few = 200  # the fifth call of a session makes plans to keep, and reads 120
    assert pages_of(queue, lambda: run(queue, walks_again=False)) < few, "the next run goes on where this one stopped"
    if old is State.FAILED:
        assert pages_of(queue, lambda: run(queue)) > 5 * few, "as a walk from the beginning does not"


# Leases.


@pytest.mark.promise("`expire()` never touches a lease that has not lapsed")
def test_the_expiry_of_a_topic_takes_the_lapsed_leases_of_owners_that_hold_tasks_of_it_and_no_other(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.create_topic("other")
    lapsed, idle, elsewhere = (queue.register(name) for name in ("lapsed", "idle", "elsewhere"))
    mine, theirs = task_in(queue, lapsed, State.ACTIVE, "mine"), task_in(queue, owner, State.ACTIVE, "theirs")
    [also_mine] = queue.push("other", ["also mine"])
    queue.poll("other", lapsed)
    other = task_in(queue, elsewhere, State.ACTIVE, "other", topic="other")
    for each in (lapsed, idle, elsewhere):
        lapse(queue, each)
    assert queue.expire(timedelta(minutes=1)) == 0, "a grace spares them"
    assert queue.expire(topic="work") == 2
    assert [known(queue, mine).state, known(queue, also_mine, "other").state] == [State.READY] * 2
    assert (queue.held(owner), queue.held(elsewhere)) == ([theirs], [other])
    with pytest.raises(UnknownTopic):
        queue.expire(topic="missing")
    assert queue.expire() == 1


@pytest.mark.promise("A crash uses no attempt")
@pytest.mark.promise("A task that is reset, released or redelivered gets its old place back")
def test_a_crashed_task_is_redelivered_in_its_old_place_until_its_last_permitted_crash(
    queue: TaskQueue, owner: Owner
) -> None:
    task, *_ = queue.push("work", ["a", "b"])
    for crashes in (1, 2, 3):
        [polled] = queue.poll("work", owner)
        assert (polled, polled.attempt, polled.redelivered) == (task, 1, crashes > 1)
        lapse(queue, owner)
        assert queue.expire() == 1
        info = known(queue, task)
        assert (info.state is State.FAILED, info.crashes, info.attempt) == (crashes == 3, crashes, 0)
        owner = queue.register("owner")
    assert "given up after crash 3" in (info.error or "")


def test_upkeep_gives_the_tasks_of_lapsed_leases_back_but_not_those_of_excepted_owners(queue: TaskQueue) -> None:
    queue.create_topic("kept", keeps_expired(max_crashes=1))
    owners = [queue.register(f"owner {number}") for number in range(4)]
    for owner in owners[:2]:
        for topic in ("work", "kept"):
            queue.push(topic, [owner.name])
            queue.poll(topic, owner)
    for owner in owners[:3]:
        lapse(queue, owner)
    assert queue.maintain(except_owners=["other", "owner 0", "owner 1"]).expired == 0
    assert [len(queue.held(owner)) for owner in owners] == [2, 2, 0, 0]
    assert queue.maintain() == MaintenanceResult(expired=4, purged=0, more=False)
    assert [state for _, state in states(queue)] == [State.READY] * 2
    assert {(info.state, info.completed) for info in everything(queue, "kept")} == {(State.EXPIRED, None)}
    assert [owner.name for owner in queue.owners()] == ["owner 3"]


# Health.


@pytest.mark.parametrize("needed_by", ["a held task", "a retention"])
def test_health_tells_that_no_program_carries_out_upkeep_that_is_needed(queue: TaskQueue, needed_by: str) -> None:
    age_upkeep(queue.conn, timedelta(minutes=11))
    assert found(queue, "upkeep").severity is Severity.FINE
    if needed_by == "a held task":
        queue.push("work", ["a"])
        queue.poll("work", queue.register("owner"))
    else:
        queue.alter_topic("work", **BOTH)
    assert found(queue, "upkeep").severity is Severity.NOTICE
    run(queue)
    assert found(queue, "upkeep").severity is Severity.FINE
    age_upkeep(queue.conn, timedelta(hours=3))
    finding = found(queue, "upkeep")
    assert (finding.severity, finding.remedy) == (Severity.WARNING, "taskq maintain")
    assert finding.detail.startswith("no program has called taskq.maintain() for 3 h")


def test_health_names_the_consumer_group_for_which_tasks_stay(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", **BOTH)
    first, _ = ended(queue, owner, "a", "b")
    queue.advance("slow", "work", 0, Cursor(first.sequence))
    pass_time(queue, 2 * DAY)
    run(queue)
    finding = found(queue, "upkeep")
    assert (finding.severity, finding.topic) == (Severity.WARNING, "work")
    assert f"consumer group 'slow' has handled topic 'work' up to sequence {first.sequence}." in finding.detail
    assert finding.remedy == "SELECT taskq.forget_group('slow', 'work')"
    queue.conn.execute(finding.remedy.encode())
    run(queue)
    assert found(queue, "upkeep").severity is Severity.FINE
