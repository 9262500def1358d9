"""Topic status: the counts of tasks that cannot be polled, and a sentence about them."""

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_taskq.queue import (
    Condition,
    Decision,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    TaskQueue,
    TopicPolicy,
    TopicStatus,
)
from airflow_provider_taskq.queue.topic_status import (
    MAX_COUNT,
    describe_group_wait,
    describe_ready_wait,
    describe_state_wait,
)
from tests.queue.explained import explain

pytestmark = pytest.mark.promise("One sentence says why a task is not running")

HOUR = timedelta(hours=1)
SINCE = datetime(2026, 11, 22, 10, 4, 34, tzinfo=UTC)
PAUSE = "topic paused by alice since 2026-11-22 10:04:34 UTC"
UNDER = "Waits for 5 ready tasks of topic 'work' under SINGULAR_BY_IDENTIFIER"
NO_TASKS = TopicStatus("work", 0, 0, 0, 0, 0, 0)
PAUSED = TopicStatus("work", 0, 3, 0, 0, 0, 0, True, "alice", SINCE)


def test_each_kind_of_unfinished_task_is_counted_once(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=3, base=HOUR, max_delay=HOUR, jitter=0)))
    queue.push("work", ["running", "fails", "ended"])
    running, fails, ended = queue.poll("work", owner, 3)
    queue.complete(owner, {fails: Result.FAILURE, ended: Result.SUCCESS})
    queue.push(
        "work", ["ready", NewTask("urgent", priority=9), NewTask("later", delay=HOUR), NewTask("low", priority=-9)]
    )
    queue.push("work", [NewTask("dependent", depends_on=[("work", "running")])])
    (paused,) = queue.push("work", ["paused"])
    queue.change_waiting("work", [paused.sequence], paused=True)
    assert queue.topic_status("work") == TopicStatus(
        "work", ready=3, scheduled=1, retrying=1, blocked=1, paused=1, running=1
    )
    assert running.identifier == "running"


def test_a_condition_blocks_tasks_behind_others_of_their_identifier(queue: TaskQueue, owner: Owner) -> None:
    queue.push("work", ["a", "a", "a", "b"])
    assert queue.topic_status("work").ready == 4
    singular = queue.topic_status("work", Condition.SINGULAR_BY_IDENTIFIER)
    assert (singular.ready, singular.blocked) == (2, 2)
    (first,) = queue.poll("work", owner, 1, condition=Condition.SINGULAR_BY_IDENTIFIER)
    assert first.identifier == "a"
    singular = queue.topic_status("work", Condition.SINGULAR_BY_IDENTIFIER)
    assert (singular.ready, singular.blocked, singular.running) == (1, 2, 1)


def test_retries_behind_a_probe_are_blocked_once_they_are_due(queue: TaskQueue, owner: Owner) -> None:
    queue.create_topic("probed", TopicPolicy(RetryPolicy(max_attempts=9, base=timedelta(0), jitter=0, probe=True)))
    queue.push("probed", ["a", "b", "c"])
    tasks = queue.poll("probed", owner, 3)
    queue.complete(owner, dict.fromkeys(tasks, Decision(Result.FAILURE, error="down")))
    status = queue.topic_status("probed")
    assert (status.ready, status.blocked, status.retrying) == (1, 2, 0)


def test_a_paused_topic_names_the_actor_and_the_moment(queue: TaskQueue) -> None:
    queue.push("work", ["due", NewTask("later", delay=HOUR)])
    before = queue.now()
    queue.conn.execute("SELECT set_config('taskq.actor', 'alice', false)")
    assert queue.pause_topic("work")
    status = queue.topic_status("work")
    assert (status.ready, status.paused, status.scheduled) == (0, 1, 1)
    assert (status.topic_paused, status.paused_by) == (True, "alice")
    assert status.paused_since is not None
    assert before <= status.paused_since <= queue.now()
    queue.conn.execute("SELECT set_config('taskq.actor', 'bob', false)")
    assert not queue.pause_topic("work")
    assert queue.topic_status("work") == status, "a second pause keeps the first actor"
    assert queue.resume_topic("work")
    assert queue.topic_status("work") == TopicStatus("work", 1, 1, 0, 0, 0, 0)
    queue.conn.execute("RESET taskq.actor")
    queue.pause_topic("work")
    assert queue.topic_status("work").paused_by == queue.conn.info.user, "a program that names no actor"


def test_counts_stop_at_the_cap_and_read_no_table_as_a_whole(own_queue: TaskQueue) -> None:
    own_queue.push("work", [NewTask(f"later-{number}", delay=HOUR) for number in range(5000)])
    found: list[TopicStatus] = []
    seen = explain(own_queue.conn, lambda: found.append(own_queue.topic_status("work")))
    assert [(status.scheduled, str(status)) for status in found] == [(MAX_COUNT, "0 ready, 1,000 or more scheduled")]
    assert seen.most <= 2 * MAX_COUNT, seen


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (describe_ready_wait(PAUSED, 5), f"Waits for 5 ready tasks of topic 'work'; 0 ready, 3 scheduled, {PAUSE}."),
        (
            describe_ready_wait(TopicStatus("work", 2, 0, 1, 4, 0, 1), 5, "SINGULAR_BY_IDENTIFIER", 60.0),
            f"{UNDER}, or one after 60 s; 2 ready, 1 retrying, 4 blocked, 1 running.",
        ),
        (
            describe_state_wait(PAUSED, {"a": "SUCCEEDED", "b": "READY", "c": None}, {"SUCCEEDED"}),
            f"Waits for 3 tasks of topic 'work' to be SUCCEEDED; 1 done, 'b' is READY, 'c' has no task, {PAUSE}.",
        ),
        (
            describe_state_wait(NO_TASKS, {f"{number}": "READY" for number in range(12)}, {"SUCCEEDED", "FILTERED"}),
            "Waits for 12 tasks of topic 'work' to be FILTERED or SUCCEEDED; 0 done, "
            + "".join(f"'{number}' is READY, " for number in range(10))
            + "2 more are not.",
        ),
        (
            describe_group_wait(NO_TASKS, 3, 2),
            "Waits for 3 groups of suspended tasks of topic 'work'; 1 released, 2 incomplete.",
        ),
    ],
)
def test_a_sentence_describes_the_wait_of_a_gate(sentence: str, expected: str) -> None:
    assert sentence == expected
