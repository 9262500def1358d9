"""Upkeep: expires lapsed leases and removes tasks by the policies of their topics, in short calls that never wait."""

from collections.abc import Callable
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
    TaskQueueError,
)
from tests.internals import age_upkeep, store_tasks, stored_rows
from tests.queue.conftest import hurry, keeps_expired, known, lapse, numbered, pass_time, states, task_in
from tests.queue.test_health import found
from tests.queue.test_sessions import pages_of

pytestmark = pytest.mark.promise("Upkeep removes a task only after the time that its topic says")

DAY = timedelta(days=1)
BOTH: dict[str, Any] = {"keep_succeeded": DAY, "keep_failed": DAY}
OF_A_TOPIC, OF_A_CALL = 500, 2_000
SUCCEEDED = {State.SUCCEEDED, State.FILTERED, State.RECREATED, State.REDUNDANT}


def run(queue: TaskQueue, *, walks_again: bool = True) -> int:
    """Carry out a run, as if the last one was long ago. Return how many tasks it has removed.

    Without `walks_again`, only the minute between two runs has passed, and not the time between two walks over a topic.
    """
    age_upkeep(queue.conn, DAY if walks_again else timedelta(minutes=1))
    calls = [queue.maintain()]
    while calls[-1].more:
        calls.append(queue.maintain())
    return sum(call.purged for call in calls)


def ended(queue: TaskQueue, owner: Owner, *identifiers: str, result: Result = Result.SUCCESS) -> list[Task]:
    """Tasks that have just ended with this result. The topic must have no READY task."""
    tasks = queue.push("work", list(identifiers))
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner, len(tasks)), result))
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


def test_a_retention_of_zero_removes_tasks_at_the_next_run(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", keep_succeeded=0, keep_failed=0)
    ended(queue, owner, "a", "b")
    ended(queue, owner, "c", result=Result.FAILURE)
    assert run(queue) == 3


def test_a_new_retention_holds_for_tasks_that_were_passed_under_the_old_one(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", keep_succeeded=DAY)
    ended(queue, owner, "a", result=Result.FAILURE)
    ended(queue, owner, "b")
    pass_time(queue, 2 * DAY)
    assert run(queue) == 1
    queue.alter_topic("work", keep_failed=DAY)
    assert run(queue, walks_again=False) == 1


def test_a_task_that_ended_after_the_walk_had_passed_it_is_removed_by_a_later_walk(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", keep_succeeded=DAY)
    [late] = queue.push("work", ["late"])
    assert queue.poll("work", owner) == [late]
    ended(queue, owner, "early")
    pass_time(queue, 2 * DAY)
    assert run(queue) == 1
    queue.complete(owner, {late: Result.SUCCESS})
    pass_time(queue, 2 * DAY)
    assert run(queue, walks_again=False) == 0
    assert run(queue) == 1


def test_nothing_is_left_of_a_removed_task(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", **BOTH)
    run(queue)
    before = stored_rows(queue.conn).keys()
    ended(queue, owner, "first")
    queue.push("work", [NewTask("a", depends_on=[("work", "first")])])
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.FAILURE))
    pass_time(queue, 2 * DAY)
    assert run(queue) == 2
    assert stored_rows(queue.conn).keys() == before


def test_the_walk_of_a_dropped_topic_is_forgotten(queue: TaskQueue, owner: Owner) -> None:
    before = stored_rows(queue.conn).keys()
    queue.create_topic("walked", **BOTH)
    queue.push("walked", ["a"])
    queue.complete(owner, dict.fromkeys(queue.poll("walked", owner), Result.SUCCESS))
    run(queue)
    assert stored_rows(queue.conn).keys() > before
    queue.drop_topic("walked")
    assert stored_rows(queue.conn).keys() == before


# What stays, because something waits for it.


@pytest.mark.promise("No removal changes which tasks run later")
def test_a_task_that_a_consumer_group_has_not_handled_stays(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", **BOTH)
    first, second, third = ended(queue, owner, "a", "b", "c")
    queue.join_group("group", "work")
    lease = queue.acquire_partition("group", "work", "member", DAY)
    assert lease is not None
    pass_time(queue, 2 * DAY)
    assert run(queue) == 0
    batch = queue.read_partition(lease, 2)
    assert [event.sequence for _, event in batch] == [first.sequence, second.sequence]
    assert queue.advance_partition(lease, batch.after, Cursor(second.sequence))
    assert run(queue, walks_again=False) == 2
    assert left(queue) == ["c"]
    assert [event.sequence for _, event in queue.read_partition(lease)] == [third.sequence]
    queue.forget_group("group", "work")
    assert run(queue, walks_again=False) == 1


def test_the_slowest_of_all_groups_decides(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", **BOTH)
    first, second = ended(queue, owner, "a", "b")
    pass_time(queue, 2 * DAY)
    queue.advance("fast", "work", 0, Cursor(second.sequence))
    queue.advance("slow", "work", 0, Cursor(second.sequence))
    queue.advance("slow", "work", 1, Cursor(first.sequence))
    assert run(queue) == 1
    assert left(queue) == ["b"]


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
    assert run(queue) == 1
    assert known(queue, dependent, "next").state is State.ACTIVE


def test_a_removed_success_fulfills_a_dependency_as_before(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", **BOTH)
    ended(queue, owner, "a")
    [dependent] = queue.push("work", [NewTask("dependent", delay=3 * DAY, depends_on=[("work", "a")])])
    pass_time(queue, 4 * DAY)
    run(queue)
    assert queue.poll("work", owner) == [dependent]


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


def test_a_failure_that_holds_nothing_back_is_removed_though_its_identifier_never_rests(
    queue: TaskQueue, owner: Owner
) -> None:
    queue.alter_topic("work", **BOTH)
    ended(queue, owner, "a", result=Result.FAILURE)
    ended(queue, owner, "a")  # was claimed after the failure, so the polls have no condition that suspends
    queue.push("work", ["a"])
    pass_time(queue, 2 * DAY)
    assert run(queue) == 2
    assert states(queue) == [("a", State.READY)]


# How much a call does, and when.


def test_tasks_are_removed_at_most_once_a_minute_whichever_session_calls(
    queue: TaskQueue, owner: Owner, open_queue: Callable[[], TaskQueue]
) -> None:
    queue.alter_topic("work", **BOTH)
    assert queue.maintain() == MaintenanceResult(0, 0, more=False)
    ended(queue, owner, "a")
    pass_time(queue, 2 * DAY)
    other = open_queue()
    assert [each.maintain().purged for each in (queue, other, queue)] == [0, 0, 0]
    other.conn.rollback()
    queue.alter_topic("work", keep_succeeded=DAY / 2)  # from now on the next run removes the task
    assert queue.maintain().purged == 0
    age_upkeep(queue.conn, timedelta(minutes=1))
    assert queue.maintain().purged == 1


def test_one_session_at_a_time_removes_tasks_and_no_other_waits(
    queue: TaskQueue, owner: Owner, session: TaskQueue
) -> None:
    queue.alter_topic("work", **BOTH)
    ended(queue, owner, "a")
    pass_time(queue, 2 * DAY)
    assert session.maintain().purged == 1
    assert hurry(queue).maintain() == MaintenanceResult(0, 0, more=False)
    session.conn.rollback()
    assert queue.maintain().purged == 1


@pytest.mark.promise("Upkeep takes milliseconds and waits for no session")
@pytest.mark.slow
def test_a_call_removes_a_bounded_number_of_tasks_and_each_topic_has_its_turn(own_queue: TaskQueue) -> None:
    queue, topics = own_queue, [f"topic {number}" for number in range(6)]
    owner = queue.register("owner")
    for topic in topics:
        queue.create_topic(topic, keep_succeeded=DAY)
        queue.push_stream(topic, numbered(1_200))
        queue.complete(owner, dict.fromkeys(queue.poll(topic, owner, 1_200), Result.SUCCESS))
    pass_time(queue, 2 * DAY)
    kept = dict.fromkeys(topics, 1_200)
    calls = 0
    while True:
        done = queue.maintain()
        calls += 1
        now = {topic: queue.count_tasks(topic) for topic in topics}
        assert done.purged == sum(kept.values()) - sum(now.values()) <= OF_A_CALL
        assert all(kept[topic] - now[topic] <= OF_A_TOPIC for topic in topics)
        assert max(now.values()) - min(now.values()) <= OF_A_TOPIC, "none has a second turn before all had one"
        assert done.more is bool(sum(now.values())) or done.purged > 0
        kept = now
        if not done.more:
            break
    assert set(kept.values()) == {0}
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
    assert pages_of(queue, lambda: run(queue, walks_again=False)) < 100, "the next run goes on where this one stopped"


# Leases.


def test_upkeep_gives_the_tasks_of_lapsed_leases_back(queue: TaskQueue) -> None:
    queue.create_topic("kept", keeps_expired())
    owners = [queue.register(f"owner {number}") for number in range(4)]
    for owner in owners[:2]:
        queue.push("work", [owner.name])
        queue.push("kept", [owner.name])
        queue.poll("work", owner)
        queue.poll("kept", owner)
        lapse(queue, owner)
    lapse(queue, owners[2])
    assert queue.maintain() == MaintenanceResult(expired=4, purged=0, more=False)
    assert [state for _, state in states(queue)] == [State.READY] * 2
    assert [state for _, state in states(queue, "kept")] == [State.EXPIRED] * 2
    assert [owner.name for owner in queue.owners()] == ["owner 3"]
    assert queue.maintain().expired == 0


def test_upkeep_leaves_the_leases_of_excepted_owners_alone(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner)
    assert queue.maintain(except_owners=["other", owner.name]).expired == 0
    assert queue.held(owner) == [task]
    assert queue.maintain(except_owners=["other"]).expired == 1


def test_upkeep_expires_leases_more_often_than_it_removes_tasks(queue: TaskQueue, owner: Owner) -> None:
    queue.maintain()
    task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner)
    assert queue.maintain().expired == 1


@pytest.mark.promise("Upkeep takes milliseconds and waits for no session")
@pytest.mark.parametrize("work", ["heartbeat", "purge"])
def test_upkeep_skips_a_lease_that_another_transaction_uses(
    queue: TaskQueue, owner: Owner, session: TaskQueue, work: str
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    other = queue.register("other")
    task_in(queue, other, State.ACTIVE, "b")
    lapse(queue, other)
    lapse(queue, owner)
    if work == "heartbeat":
        session.heartbeat(owner)
    else:
        session.purge("work", task.sequence, task.sequence, State.ACTIVE)
    assert hurry(queue).maintain().expired == 1
    assert known(queue, task).state is State.ACTIVE
    session.conn.rollback()
    assert queue.maintain().expired == 1


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_upkeep_needs_read_committed(session: TaskQueue, level: str) -> None:
    session.conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
    with pytest.raises(TaskQueueError, match="READ COMMITTED"):
        session.maintain()


# Other sessions at the same time.


def test_upkeep_skips_a_task_that_another_transaction_holds(queue: TaskQueue, owner: Owner, session: TaskQueue) -> None:
    queue.alter_topic("work", **BOTH)
    ended(queue, owner, "a", "b", result=Result.FAILURE)
    pass_time(queue, 2 * DAY)
    session.revive("work", State.FAILED, size=1)
    assert run(hurry(queue)) == 1
    session.conn.rollback()
    assert run(queue) == 1


VERBS: dict[str, Callable[[TaskQueue, Owner], object]] = {
    "push": lambda queue, _owner: queue.push("work", ["a", "new"]),
    "replace": lambda queue, _owner: queue.push("work", ["a"], Insertion.REPLACE),
    "delete": lambda queue, _owner: queue.push("work", ["a"], Insertion.DELETE),
    "offer": lambda queue, _owner: queue.offer("work", "a"),
    "poll": lambda queue, owner: queue.poll("work", owner, 5),
    "complete": lambda queue, owner: queue.complete(owner, dict.fromkeys(queue.held(owner), Result.SUCCESS)),
    "heartbeat": lambda queue, owner: queue.heartbeat(owner),
    "register": lambda queue, _owner: queue.register("new"),
    "expire": lambda queue, _owner: queue.expire(),
    "revive": lambda queue, _owner: queue.revive("work", State.FAILED),
    "purge": lambda queue, _owner: queue.purge("work"),
    "junction": lambda queue, _owner: queue.junction("work", [["a"]]),
    "alter_topic": lambda queue, _owner: queue.alter_topic("work", keep_failed=None),
    "pause_topic": lambda queue, _owner: queue.pause_topic("work"),
    "create_topic": lambda queue, _owner: queue.create_topic("new", keep_succeeded=DAY),
    "events": lambda queue, _owner: queue.events("work", None),
    "advance": lambda queue, _owner: queue.advance("group", "work", 0, Cursor(0)),
    "maintain": lambda queue, _owner: queue.maintain(),
}


@pytest.mark.promise("Upkeep takes milliseconds and waits for no session")
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_waits_for_an_open_upkeep(queue: TaskQueue, owner: Owner, session: TaskQueue, verb: str) -> None:
    queue.alter_topic("work", **BOTH)
    ended(queue, owner, "a", "b", "c", result=Result.FAILURE)
    crashed = queue.register("crashed")
    queue.push("work", ["d"])
    queue.poll("work", crashed)
    lapse(queue, crashed)
    queue.push("work", ["e"])
    queue.poll("work", owner)
    pass_time(queue, 2 * DAY)
    assert session.maintain() == MaintenanceResult(expired=1, purged=3, more=False)
    VERBS[verb](hurry(queue), owner)


# Health.


def test_health_names_a_topic_whose_tasks_stay_because_no_program_carries_out_upkeep(
    queue: TaskQueue, owner: Owner
) -> None:
    assert found(queue, "upkeep").severity is Severity.FINE
    queue.alter_topic("work", **BOTH)
    ended(queue, owner, "a")
    pass_time(queue, DAY)
    assert found(queue, "upkeep").severity is Severity.FINE
    pass_time(queue, DAY)
    finding = found(queue, "upkeep")
    assert (finding.severity, finding.topic) == (Severity.WARNING, "work")
    assert "no program has called taskq.maintain() so far" in finding.detail
    assert finding.remedy == "taskq maintain"
    run(queue)
    finding = found(queue, "upkeep")
    assert finding.severity is Severity.FINE
    assert "removed tasks last 0 s ago" in finding.detail
    ended(queue, owner, "b")
    pass_time(queue, 2 * DAY)
    age_upkeep(queue.conn, timedelta(hours=3))
    assert "no program has called taskq.maintain() for 3 h" in found(queue, "upkeep").detail


def test_health_names_the_consumer_group_for_which_tasks_stay(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", **BOTH)
    first, _ = ended(queue, owner, "a", "b")
    queue.advance("slow", "work", 0, Cursor(first.sequence))
    pass_time(queue, 2 * DAY)
    run(queue)
    finding = found(queue, "upkeep")
    assert (finding.severity, finding.topic) == (Severity.WARNING, "work")
    assert f"consumer group 'slow' has handled the log up to sequence {first.sequence}" in finding.detail
    assert finding.remedy == "SELECT taskq.forget_group('slow', 'work')"
    queue.conn.execute(finding.remedy.encode())
    run(queue)
    assert found(queue, "upkeep").severity is Severity.FINE


def test_health_notices_a_lease_that_no_program_would_end(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.ACTIVE)
    assert found(queue, "upkeep").severity is Severity.FINE
    age_upkeep(queue.conn, timedelta(minutes=11))
    finding = found(queue, "upkeep")
    assert (finding.severity, finding.owner, finding.remedy) == (Severity.NOTICE, owner.name, "taskq maintain")
    assert finding.detail.startswith("no program has called taskq.maintain() so far: if owner")
    run(queue)
    assert found(queue, "upkeep").severity is Severity.FINE
    age_upkeep(queue.conn, timedelta(minutes=11))
    assert "no program has called taskq.maintain() for 11 min" in found(queue, "upkeep").detail


def test_a_lapsed_lease_is_one_finding_and_not_two(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner, timedelta(hours=1))
    age_upkeep(queue.conn, timedelta(hours=1))
    assert found(queue, "lapsed leases").severity is Severity.CRITICAL
    assert found(queue, "upkeep").severity is Severity.FINE


def test_health_notices_ended_tasks_that_are_kept_forever(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("a topic without tasks")
    queue.push("work", ["a"])
    assert found(queue, "retention").severity is Severity.FINE
    ended(queue, owner, "b")
    finding = found(queue, "retention")
    assert (finding.severity, finding.topic) == (Severity.NOTICE, "work")
    assert finding.detail.startswith("2 of 2 topics keep tasks that have succeeded forever, as they have no keep_")
    assert "for example 'work'" in finding.detail
    assert finding.remedy == "taskq topics alter --keep-succeeded 30d work"
    queue.alter_topic("work", keep_succeeded="30d")
    assert found(queue, "retention").severity is Severity.FINE


def test_health_says_what_to_call_for_lapsed_leases(queue: TaskQueue, owner: Owner) -> None:
    task_in(queue, owner, State.ACTIVE)
    lapse(queue, owner, timedelta(minutes=10))
    finding = found(queue, "lapsed leases")
    assert '"taskq maintain"' in finding.detail
    assert finding.remedy == "taskq maintain"
