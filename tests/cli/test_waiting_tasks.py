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


@pytest.mark.parametrize("words", [("run-now", "work"), ("priority", "work", 9), ("cancel", "work")])
def test_changes_of_named_tasks_apply_and_a_dry_run_changes_nothing(
    ask: Ask, queue: TaskQueue, later: list[int], words: tuple[object, ...]
) -> None:
    before = image(queue)
    assert ask(*words, *later[:2], "--dry-run")["changed"] == 2
    assert image(queue) == before
    assert ask(*words, *later[:2])["changed"] == 2
    first = known(queue, later[0])
    assert {
        "run-now": first.status == "ready",
        "priority": first.priority == 9,
        "cancel": first.state is State.FILTERED,
    }[str(words[0])]
    assert known(queue, later[2]).status == "scheduled"
    (line,) = queue.audit_trail()
    assert (line.action, line.topic, line.count) == (
        {"run-now": "run_now", "priority": "set_priority"}.get(str(words[0]), str(words[0])),
        "work",
        2,
    )
    assert str(later[0]) in line.what


def test_changes_by_filter_need_a_confirmation(run: Run, queue: TaskQueue, later: list[int]) -> None:
    assert "2 tasks of work" in run("cancel", "work", "--reference", "r", code=2).output
    assert known(queue, later[0]).status == "scheduled"
    run("cancel", "work", "--reference", "r", "--yes")
    assert [known(queue, one).state for one in later] == [State.FILTERED, State.FILTERED, State.READY]
    run("run-now", "work", "--status", "scheduled", "--yes")
    assert known(queue, later[2]).status == "ready"


def test_changes_without_a_clear_selection_are_refused(run: Run, later: list[int]) -> None:
    assert "name the tasks" in run("cancel", "work", code=2).output
    assert "not both" in run("cancel", "work", later[0], "--status", "ready", code=2).output
    assert "-100" in run("priority", "work", "101", later[0], code=2).output
    assert "only a READY task" in run("cancel", "work", later[0], 10**12, code=1).output
