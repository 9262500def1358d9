"""Groups of failures: tasks with the same error, apart from identifiers and numbers."""

import pytest

from airflow_provider_taskq.queue import Decision, NewTask, Owner, Result, RetryPolicy, State, TaskQueue, TopicPolicy
from airflow_provider_taskq.queue.reports import TaskFilter

pytestmark = pytest.mark.promise("Failures with the same error form a group")


def fail(queue: TaskQueue, owner: Owner, errors: dict[str, BaseException | str | None]) -> list[int]:
    """Fails a task for each identifier with its error, and returns their sequences."""
    queue.push("work", [NewTask(identifier) for identifier in errors])
    held = queue.poll("work", owner, len(errors))
    queue.complete(owner, {task: Decision(Result.FAILURE, error=errors[task.identifier]) for task in held})
    return [task.sequence for task in held]


@pytest.mark.parametrize(
    ("summary", "identifier", "group"),
    [
        ("ValueError: no mailbox for bad-1", "bad-1", "ValueError: no mailbox for #"),
        ("ValueError: no mailbox for jane", "jane", "ValueError: no mailbox for #"),
        ("ValueError: no mailbox for bad-17", "a", "ValueError: no mailbox for bad-#"),
        ("TimeoutError", "a", "TimeoutError"),
        ("S3Error: no bucket b2", "a", "S3Error: no bucket #"),
        ("S3Error", "S3Error", "S3Error"),
        ("KeyError: '9f86d081-abcd-abcd-abcd-a3bf4f1b2b0b'", "a", "KeyError: '#'"),
        ("OSError: 10.0.0.1:5432 at 2026-11-22T10:04:35.123Z", "a", "OSError: # at #"),
        ("orders.mail.Bounced: a of b.c", "a", "orders.mail.Bounced: a of b.c"),
        ("it broke 3 times", "b", "it broke # times"),
        ("HTTPError: GET /orders/17 answered 503", "b", "HTTPError: GET /orders/# answered 503"),
        ("SMTPError: 550 5.1.1 no such user", "b", "SMTPError: 550 # no such user"),
        ("OSError: port 404:17 of host-404", "b", "OSError: port # of host-#"),
        (None, "a", "no error given"),
    ],
)
def test_an_error_group_leaves_out_the_parts_that_differ_from_task_to_task(
    queue: TaskQueue, owner: Owner, summary: str | None, identifier: str, group: str
) -> None:
    fail(queue, owner, {identifier: summary})
    assert [found.error for found in queue.error_groups("work")] == [group]


def test_the_largest_group_comes_first_with_its_newest_example(queue: TaskQueue, owner: Owner) -> None:
    many = {f"bad-{number}": ValueError(f"no mailbox for bad-{number}") for number in range(3)}
    *_, newest, _, last = fail(queue, owner, {**many, "slow": TimeoutError(), "silent": None})
    first, *others = queue.error_groups("work")
    assert (first.error, first.failed, first.retrying, first.messages) == ("ValueError: no mailbox for #", 3, 0, 3)
    assert (first.example, first.newest, first.looked_at) == ("ValueError: no mailbox for bad-2", newest, 5)
    assert first.last_failed is not None
    assert [(one.error, one.failed, one.example) for one in others] == [
        ("TimeoutError", 1, "TimeoutError"),
        ("no error given", 1, None),
    ]
    assert others[1].newest == last
    assert queue.error_groups("work", 1) == [first]
    assert [(one.error, one.looked_at) for one in queue.error_groups("work", budget=1)] == [("no error given", 1)]


def test_tasks_that_will_be_retried_count_in_their_error_group(queue: TaskQueue, owner: Owner) -> None:
    fail(queue, owner, {"a": ValueError("for aa1"), "b": ValueError("for b2")})
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2)))
    fail(queue, owner, {"c": ValueError("for c3"), "d": KeyError("x")})
    assert [(one.error, one.failed, one.retrying) for one in queue.error_groups("work")] == [
        ("ValueError: for #", 2, 1),
        ("KeyError: 'x'", 0, 1),
    ]


def test_a_filter_finds_exactly_the_tasks_of_a_group(queue: TaskQueue, owner: Owner) -> None:
    errors = {f"bad-{number}": ValueError(f"no mailbox for bad-{number}") for number in range(3)}
    sequences = fail(queue, owner, {**errors, "slow": TimeoutError(), "silent": None})
    group = TaskFilter(state=State.FAILED, error_group="ValueError: no mailbox for #")
    assert queue.find_tasks("work", group, newest=False).sequences == sequences[:3]
    assert set(queue.revive("work", sequences=sequences[:3])) == set(sequences[:3])
    assert {one.error for one in queue.error_groups("work")} == {"TimeoutError", "no error given"}
    assert queue.find_tasks("work", TaskFilter(error_group="TimeoutError")).sequences == [sequences[3]]
    assert queue.find_tasks("work", TaskFilter(error_group="no error given")).sequences == [sequences[4]]
