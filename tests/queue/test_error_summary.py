"""Error summaries: each recorded failure stores the one line of its traceback that names the error."""

import pickle
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Decision,
    NewTask,
    Owner,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
)
from airflow_provider_taskq.queue.errors import picklable_error, trace_text
from airflow_provider_taskq.queue.reports import TaskFilter
from tests.internals import lapse_lease
from tests.queue.conftest import complete_staged, known, task_in

pytestmark = pytest.mark.promise("The history of a task has each recorded failure with time, holder and reason")

NEVER = timedelta(0)


class Mute(Exception):
    """An exception whose message raises an error."""

    def __str__(self) -> str:
        raise RuntimeError


def raised(action: Callable[[], object]) -> Exception:
    """The exception of an action, with its traceback."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 -- any of them
        return error
    raise AssertionError("the action raised nothing")


def fail(error: BaseException) -> None:
    """Raises an exception."""
    raise error


def chained() -> None:
    """Raises an exception that another one caused."""
    try:
        fail(KeyError("a"))
    except KeyError as error:
        raise ValueError("the second") from error


def in_handling() -> None:
    """Raises an exception while another one is handled."""
    try:
        fail(KeyError("a"))
    except KeyError:
        fail(ValueError("the second"))


def recursion(turn: int = 0) -> int:
    """Fills a traceback of more than 10,000 characters with frames of two functions."""
    return back(turn + 1)


def back(turn: int) -> int:
    """The other half of `recursion`."""
    return recursion(turn + 1)


def with_notes() -> None:
    """Raises an exception with notes."""
    error = ValueError("no mailbox")
    error.add_note("a note\nof two lines")
    fail(error)


def group() -> None:
    """Raises exceptions as one."""
    fail(ExceptionGroup("two failed", [raised(chained), ExceptionGroup("more", [KeyError("b"), OSError(), OSError()])]))


EXCEPTIONS = {
    "plain": (raised(lambda: fail(ValueError("no mailbox for bad-1"))), "ValueError: no mailbox for bad-1"),
    "without a message": (raised(lambda: fail(ValueError())), "ValueError"),
    "never raised": (ValueError("made"), "ValueError: made"),
    "with a cause": (raised(chained), "ValueError: the second"),
    "in a handler": (raised(in_handling), "ValueError: the second"),
    "with notes": (raised(with_notes), "ValueError: no mailbox"),
    "of several lines": (raised(lambda: fail(ValueError("first\n  second\nthird"))), "ValueError: first"),
    "that begins with a line break": (raised(lambda: fail(ValueError("\n  first"))), "ValueError: first"),
    "of syntax, with carets": (raised(lambda: compile("a b", "<text>", "exec")), "SyntaxError: invalid syntax"),
    "of a module": (
        raised(lambda: fail(psycopg.errors.UniqueViolation("duplicate key\nDETAIL: Key (a)=(1)"))),
        "psycopg.errors.UniqueViolation: duplicate key",
    ),
    "deep": (raised(recursion), "RecursionError: maximum recursion depth exceeded"),
    "long": (raised(lambda: fail(ValueError("x" * 30_000))), f"ValueError: {'x' * 185}..."),
    "without __str__": (raised(lambda: fail(Mute())), f"{__name__}.Mute: <exception str() failed>"),
    "odd": (raised(lambda: fail(ValueError("a\x00b\ud800"))), "ValueError: a\\0b\\ud800"),
}


TEXTS: dict[str, tuple[str | None, str]] = {
    "one line": ("no fuel", "no fuel"),
    "blank lines before it": ("\n\n  late \nmore", "late"),
    "carriage returns": ("windows\r\nlines", "windows"),
    "Java": (
        "java.lang.RuntimeException: boom\n\tat org.example.Main\nCaused by: x",
        "java.lang.RuntimeException: boom",
    ),
    "a long line": ("y" * 100_000, "y" * 197 + "..."),
    "the traceback of a group": (trace_text(raised(group)), "ExceptionGroup: two failed (2 sub-exceptions)"),
    **{
        f"the traceback {name}": (trace_text(error), summary)
        for name, (error, summary) in EXCEPTIONS.items()
        if name != "that begins with a line break"
    },
}
OF_GROUP = "ExceptionGroup: two failed (ValueError: the second; KeyError: 'b'; OSError)"
ERRORS: dict[str, tuple[BaseException | str | None, str]] = {
    **EXCEPTIONS,
    "of a group": (raised(group), OF_GROUP),
    "of a pickled group": (pickle.loads(pickle.dumps(picklable_error(raised(group)))), OF_GROUP),  # noqa: S301 -- our own
    "pickled": (picklable_error(raised(chained)), "ValueError: the second"),
    **TEXTS,
}


@pytest.mark.parametrize(("error", "summary"), ERRORS.values(), ids=ERRORS)
def test_the_summary_of_an_exception_and_of_its_traceback_are_the_same_line(
    queue: TaskQueue, owner: Owner, error: BaseException | str | None, summary: str
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    queue.complete(owner, {task: Decision(Result.FAILURE, error=error)})
    assert known(queue, task).error_summary == summary
    assert queue.timeline("work", task.sequence)[-1].error_summary == summary


def crash(queue: TaskQueue, _owner: Owner, _task: Task) -> None:
    """Lets the lease lapse at the last permitted crash."""
    queue.alter_topic("work", max_crashes=1)
    lapse_lease(queue.conn)
    assert queue.expire() == 1


FAILURES: dict[str, tuple[Callable[[TaskQueue, Owner, Task], object], str]] = {
    "exchange": (
        lambda queue, owner, task: queue.exchange(
            owner, {task: Decision(Result.FAILURE, error=OSError("no disk"))}, "work"
        ),
        "OSError: no disk",
    ),
    "a stage": (
        lambda queue, owner, task: complete_staged(queue, owner, task, Result.FAILURE, "OSError: no disk\nmore"),
        "OSError: no disk",
    ),
    "a crash": (crash, "given up after crash 1: its owner died or lost its lease while it held this task alone"),
}


@pytest.mark.parametrize(("failure", "summary"), FAILURES.values(), ids=FAILURES)
def test_each_way_to_fail_stores_a_summary(
    queue: TaskQueue, owner: Owner, failure: Callable[[TaskQueue, Owner, Task], object], summary: str
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    failure(queue, owner, task)
    assert known(queue, task).error_summary == summary


def test_a_snooze_and_a_success_keep_the_summary_of_the_last_failure(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=NEVER)))
    [task] = queue.push("work", ["a"])
    for decision in (Decision(Result.FAILURE, error=KeyError("a")), Decision(Result.SUSPENSION, delay=NEVER)):
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner), decision))
        assert known(queue, task).error_summary == "KeyError: 'a'"
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.SUCCESS))
    assert (known(queue, task).state, known(queue, task).error_summary) == (State.SUCCEEDED, "KeyError: 'a'")


def test_lists_the_view_and_explain_show_the_summary_and_no_line_of_the_traceback(
    queue: TaskQueue, owner: Owner
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    error = raised(lambda: fail(ValueError("no mailbox for bad-1")))
    queue.complete(owner, {task: Decision(Result.FAILURE, error=error)})
    [line] = queue.browse_tasks("work", [task.sequence])
    assert (line.error, line.error_summary) == (None, "ValueError: no mailbox for bad-1")
    assert queue.conn.execute("SELECT error FROM taskq.tasks").fetchone() == ("ValueError: no mailbox for bad-1",)
    explained = queue.explain("work", task.sequence)
    assert explained is not None
    assert explained.reason.endswith("given up after 1 of 1 attempts: ValueError: no mailbox for bad-1")


# Groups of failures: tasks with the same error, apart from identifiers and numbers


def fail_with(queue: TaskQueue, owner: Owner, errors: dict[str, BaseException | str | None]) -> list[int]:
    """Fails a task for each identifier with its error, and returns their sequences."""
    queue.push("work", [NewTask(identifier) for identifier in errors])
    held = queue.poll("work", owner, len(errors))
    queue.complete(owner, {task: Decision(Result.FAILURE, error=errors[task.identifier]) for task in held})
    return [task.sequence for task in held]


@pytest.mark.promise("Failures with the same error form a group")
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
    fail_with(queue, owner, {identifier: summary})
    assert [found.error for found in queue.error_groups("work")] == [group]


@pytest.mark.promise("Failures with the same error form a group")
def test_the_largest_group_comes_first_with_its_newest_example(queue: TaskQueue, owner: Owner) -> None:
    many = {f"bad-{number}": ValueError(f"no mailbox for bad-{number}") for number in range(3)}
    *_, newest, _, last = fail_with(queue, owner, {**many, "slow": TimeoutError(), "silent": None})
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


@pytest.mark.promise("Failures with the same error form a group")
def test_tasks_that_will_be_retried_count_in_their_error_group(queue: TaskQueue, owner: Owner) -> None:
    fail_with(queue, owner, {"a": ValueError("for aa1"), "b": ValueError("for b2")})
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2)))
    fail_with(queue, owner, {"c": ValueError("for c3"), "d": KeyError("x")})
    assert [(one.error, one.failed, one.retrying) for one in queue.error_groups("work")] == [
        ("ValueError: for #", 2, 1),
        ("KeyError: 'x'", 0, 1),
    ]


@pytest.mark.promise("Failures with the same error form a group")
def test_a_filter_finds_exactly_the_tasks_of_a_group(queue: TaskQueue, owner: Owner) -> None:
    errors = {f"bad-{number}": ValueError(f"no mailbox for bad-{number}") for number in range(3)}
    sequences = fail_with(queue, owner, {**errors, "slow": TimeoutError(), "silent": None})
    group = TaskFilter(state=State.FAILED, error_group="ValueError: no mailbox for #")
    assert queue.find_tasks("work", group, newest=False).sequences == sequences[:3]
    assert set(queue.revive("work", sequences=sequences[:3])) == set(sequences[:3])
    assert {one.error for one in queue.error_groups("work")} == {"TimeoutError", "no error given"}
    assert queue.find_tasks("work", TaskFilter(error_group="TimeoutError")).sequences == [sequences[3]]
    assert queue.find_tasks("work", TaskFilter(error_group="no error given")).sequences == [sequences[4]]
