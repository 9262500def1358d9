"""Error summaries: each recorded failure stores the one line of its traceback that names the error."""

import pickle
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from airflow_provider_taskq.queue import (
    Decision,
    Insertion,
    Owner,
    Result,
    RetryPolicy,
    State,
    TaskQueue,
    TopicPolicy,
)
from airflow_provider_taskq.queue.errors import error_summary, picklable_error, trace_text
from tests.internals import lapse_lease
from tests.queue.conftest import known, task_in

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


@pytest.mark.parametrize(("error", "summary"), EXCEPTIONS.values(), ids=EXCEPTIONS)
def test_the_summary_of_an_exception_and_of_its_traceback_are_the_same_line(
    queue: TaskQueue, owner: Owner, error: BaseException, summary: str
) -> None:
    of_exception, of_text = queue.push("work", ["a", "b"])
    queue.poll("work", owner, 2)
    text = trace_text(error)
    queue.complete(
        owner, {of_exception: Decision(Result.FAILURE, error=error), of_text: Decision(Result.FAILURE, error=text)}
    )
    assert known(queue, of_exception).error_summary == summary
    assert known(queue, of_text).error_summary == summary
    assert known(queue, of_text).error == text


def test_the_summary_of_a_group_names_the_exceptions_in_it(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    queue.complete(owner, {task: Decision(Result.FAILURE, error=raised(group))})
    assert (
        known(queue, task).error_summary
        == "ExceptionGroup: two failed (ValueError: the second; KeyError: 'b'; OSError)"
    )


def test_the_traceback_of_a_group_is_summed_up_by_its_own_line(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    queue.complete(owner, {task: Decision(Result.FAILURE, error=trace_text(raised(group)))})
    assert known(queue, task).error_summary == "ExceptionGroup: two failed (2 sub-exceptions)"


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("no fuel", "no fuel"),
        ("\n\n  late \nmore", "late"),
        ("windows\r\nlines", "windows"),
        ("java.lang.RuntimeException: boom\n\tat org.example.Main\nCaused by: x", "java.lang.RuntimeException: boom"),
        ("y" * 100_000, "y" * 197 + "..."),
    ],
    ids=["one line", "blank lines before it", "carriage returns", "Java", "long"],
)
def test_the_summary_of_any_other_text_is_its_first_line(
    queue: TaskQueue, owner: Owner, text: str, summary: str
) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    queue.complete(owner, {task: Decision(Result.FAILURE, error=text)})
    assert known(queue, task).error_summary == summary


def test_a_retried_failure_has_its_summary_in_the_task_and_in_the_timeline(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=NEVER)))
    [task] = queue.push("work", ["a"])
    for message in ("first", "second"):
        [held] = queue.poll("work", owner)
        queue.complete(owner, {held: Decision(Result.FAILURE, error=raised(lambda: fail(ValueError(message))))})  # noqa: B023
        assert known(queue, task).error_summary == f"ValueError: {message}"
    reported = queue.timeline("work", task.sequence)
    assert [(one.what, one.error_summary) for one in reported] == [
        ("pushed", None),
        ("failed", "ValueError: first"),
        ("ended", "ValueError: second"),
    ]


def test_the_timeline_keeps_the_end_of_a_long_traceback(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2)))
    task = task_in(queue, owner, State.ACTIVE)
    queue.complete(owner, {task: Decision(Result.FAILURE, error=raised(recursion))})
    error = queue.timeline("work", task.sequence)[-1].error
    assert (error or "").endswith("RecursionError: maximum recursion depth exceeded\n")


def test_an_exchange_stores_the_summary(queue: TaskQueue, owner: Owner) -> None:
    task = task_in(queue, owner, State.ACTIVE)
    queue.exchange(owner, {task: Decision(Result.FAILURE, error=OSError("no disk"))}, "work")
    assert known(queue, task).error_summary == "OSError: no disk"


def test_a_crash_has_a_summary(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(max_crashes=1))
    task = task_in(queue, owner, State.ACTIVE)
    lapse_lease(queue.conn)
    assert queue.expire() == 1
    assert known(queue, task).error_summary == "given up: the lease of its owner lapsed 1 times while the task was held"


@pytest.mark.parametrize(
    "count", [pytest.param(1, id="in chunks"), pytest.param(50_001, id="by one statement", marks=pytest.mark.slow)]
)
def test_a_committed_stage_stores_summaries(queue: TaskQueue, owner: Owner, count: int) -> None:
    tasks = queue.push("work", [str(number) for number in range(count)])
    queue.poll("work", owner, count)
    [stage] = queue.conn.execute("SELECT taskq.open_stage(%s, %s)", (owner.name, owner.fence)).fetchone() or [
        UUID(int=0)
    ]
    queue.conn.execute(
        "INSERT INTO taskq.staged (stage, part, attempt, sequence, result, error)"
        " SELECT %s, 0, 0, sequence, 0, %s FROM taskq.tasks WHERE state = 'ACTIVE'",
        (stage, trace_text(raised(chained))),
    )
    queue.conn.execute(
        "SELECT taskq.complete_staged(%s, %s, %s, '{0}', '{0}', ARRAY[%s::bigint])",
        (owner.name, owner.fence, stage, count),
    )
    assert known(queue, tasks[-1]).error_summary == "ValueError: the second"
    assert known(queue, tasks[-1]).polled is not None


def test_a_snooze_and_a_success_keep_the_summary_of_the_last_failure(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=NEVER)))
    [task] = queue.push("work", ["a"])
    for decision in (Decision(Result.FAILURE, error=KeyError("a")), Decision(Result.SUSPENSION, delay=NEVER)):
        queue.complete(owner, dict.fromkeys(queue.poll("work", owner), decision))
        assert known(queue, task).error_summary == "KeyError: 'a'"
    queue.complete(owner, dict.fromkeys(queue.poll("work", owner), Result.SUCCESS))
    assert (known(queue, task).state, known(queue, task).error_summary) == (State.SUCCEEDED, "KeyError: 'a'")


def test_a_superseded_retry_keeps_the_summary_and_a_revived_task_has_none(queue: TaskQueue, owner: Owner) -> None:
    queue.alter_topic("work", TopicPolicy(RetryPolicy(max_attempts=2)))
    task = task_in(queue, owner, State.ACTIVE)
    queue.complete(owner, {task: Decision(Result.FAILURE, error=KeyError("a"))})
    [other] = queue.push("work", [task.identifier], Insertion.SUPERSEDE)
    assert (known(queue, task).state, known(queue, task).error_summary) == (State.REDUNDANT, "KeyError: 'a'")
    queue.poll("work", owner)
    queue.alter_topic("work", TopicPolicy())
    queue.complete(owner, {other: Decision(Result.FAILURE, error=KeyError("b"))})
    queue.revive("work", State.FAILED)
    assert known(queue, other).error_summary is None


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


def test_an_error_that_was_pickled_keeps_its_summary() -> None:
    sent = pickle.loads(pickle.dumps(picklable_error(raised(group))))  # noqa: S301 -- our own bytes
    assert sent == trace_text(raised(group)) or sent.startswith("  + Exception Group Traceback")
    assert error_summary(sent) == error_summary(raised(group))


def test_decisions_of_exceptions_and_pickled_errors_go_in_one_call(queue: TaskQueue, owner: Owner) -> None:
    tasks = queue.push("work", ["a", "b", "c", "d"])
    queue.poll("work", owner, 4)
    errors = [ValueError("a"), picklable_error(ValueError("b")), "c", None]
    queue.complete(
        owner, {task: Decision(Result.FAILURE, error=error) for task, error in zip(tasks, errors, strict=True)}
    )
    assert [known(queue, task).error_summary for task in tasks] == ["ValueError: a", "ValueError: b", "c", None]


def test_merging_a_text_into_an_exception_keeps_the_type_of_the_exception() -> None:
    merged = Decision(Result.FAILURE, error=ValueError("one")).merge(Decision(Result.FAILURE, error="two"))
    assert merged.error == "ValueError: one\n\ntwo"
