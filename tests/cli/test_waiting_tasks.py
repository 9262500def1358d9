"""taskq run-now, priority, cancel: changes of waiting tasks, also as dry runs."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import NewTask, State, TaskQueue
from tests.cli.conftest import Ask, Run
from tests.queue.conftest import image, known

pytestmark = pytest.mark.promise("A waiting task can be run now, get another priority, or be canceled")

HOUR = timedelta(hours=1)


@pytest.fixture
def later(queue: TaskQueue) -> list[int]:
    """Three tasks that are due in an hour; two have the same reference."""
    pushed = queue.push("work", [NewTask(name, reference="r" if name != "c" else None, delay=HOUR) for name in "abc"])
    return [task.sequence for task in pushed]


@pytest.mark.parametrize("named", ["sequence", "identifier"])
@pytest.mark.parametrize(
    ("words", "action", "status"),
    [
        (("run-now", "work"), "run_now", "ready"),
        (("priority", "work", 9), "set_priority", "scheduled"),
        (("cancel", "work"), "cancel", "filtered"),
    ],
)
def test_changes_of_named_tasks_apply_and_a_dry_run_changes_nothing(
    ask: Ask, queue: TaskQueue, later: list[int], words: tuple[object, ...], action: str, status: str, named: str
) -> None:
    before, names = image(queue), later[:2] if named == "sequence" else ["a", "b"]
    assert ask(*words, *names, "--dry-run")["changed"] == 2
    assert image(queue) == before
    assert ask(*words, *names)["changed"] == 2
    first = known(queue, later[0])
    assert (first.status, first.priority) == (status, 9 if action == "set_priority" else 0)
    assert known(queue, later[2]).status == "scheduled"
    (line,) = queue.audit_trail()
    assert (line.action, line.topic, line.count) == (action, "work", 2)
    assert str(later[0]) in line.what


def test_changes_by_filter_need_a_confirmation(run: Run, queue: TaskQueue, later: list[int]) -> None:
    assert "2 tasks of work" in run("cancel", "work", "--reference", "r", code=2).output
    assert known(queue, later[0]).status == "scheduled"
    run("cancel", "work", "--reference", "r", "--yes")
    assert [known(queue, one).state for one in later] == [State.FILTERED, State.FILTERED, State.READY]
    run("run-now", "work", "--status", "scheduled", "--yes")
    assert known(queue, later[2]).status == "ready"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("cancel", "work"), 2, "name the tasks"),
        (("cancel", "work", 1, "--status", "ready"), 2, "not both"),
        (("cancel", "work", 10**12), 1, "only a READY task"),
        (("priority", "work", "101", 1), 2, "-100"),
        (("retry", "work"), 2, "select them with --state"),
        (("retry", "work", 1, "--state", "FAILED"), 2, "not both"),
        (("retry", "work", "--state", "READY"), 2, "not one of"),
    ],
)
@pytest.mark.usefixtures("later")
def test_changes_without_a_clear_selection_are_refused(
    run: Run, words: tuple[object, ...], code: int, said: str
) -> None:
    assert said in run(*words, code=code).output
