"""Handlers that cannot be set up: the worker refuses them at its start, and touches no task."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskq.queue import InvalidArgument, Task, TaskQueue
from airflow_provider_taskq.worker import Composite, Worker, each

pytestmark = pytest.mark.promise("A handler that cannot be set up is refused before a task is touched")

SECONDS = 60


def closure() -> Callable[[Task], None]:
    def inner(_: Task) -> None: ...

    return inner


def closed_executor() -> ThreadPoolExecutor:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    return executor


HANDLERS: dict[str, tuple[Callable[[], Any], str]] = {
    "lambda": (
        lambda: each(lambda _: None, processes=2),
        "cannot send .*<lambda> to a process: it must be a function of a module",
    ),
    "closure": (
        lambda: each(closure(), processes=2),
        "cannot send .*inner to a process: it must be a function of a module",
    ),
    "composite without steps": (lambda: Composite("empty"), "composite 'empty' has no steps"),
    "closed executor": (lambda: each(print, executor=closed_executor()), "cannot call print in the executor"),
}


def only_task(queue: TaskQueue) -> tuple[str, int]:
    [task] = queue.page("work")
    return task.state.name, task.attempt


@pytest.mark.parametrize(("make", "words"), HANDLERS.values(), ids=HANDLERS)
def test_a_handler_that_cannot_be_set_up_is_refused_before_a_task_is_touched(
    dsn: str, queue: TaskQueue, make: Callable[[], Any], words: str
) -> None:
    queue.push("work", ["a"])
    with pytest.raises(InvalidArgument, match=words):
        Worker(dsn, "work", make()).drain()
    assert only_task(queue) == ("READY", 0)


PROGRAM = """
import sys
from airflow_provider_taskq.worker import Worker, each
def deliver(task): pass
Worker(sys.argv[1], "work", each(deliver, processes=2)).drain()
"""


def test_a_function_that_a_process_cannot_import_is_refused_before_a_task_is_touched(
    dsn: str, queue: TaskQueue, tmp_path: Path
) -> None:
    queue.push("work", ["a"])
    unguarded = tmp_path / "unguarded.py"
    unguarded.write_text(PROGRAM)
    for arguments, words in ((["-c", PROGRAM], "deliver"), ([str(unguarded)], '__name__ == "__main__"')):
        command = [sys.executable, *arguments, dsn]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert ended.returncode == 1
        assert "InvalidArgument: cannot send deliver to a process: " in ended.stderr
        assert words in ended.stderr
        assert only_task(queue) == ("READY", 0)
    guarded = tmp_path / "guarded.py"
    guarded.write_text(PROGRAM.replace("Worker(", "if __name__ == '__main__': Worker("))
    subprocess.run([sys.executable, str(guarded), dsn], timeout=SECONDS, check=True)
    assert only_task(queue) == ("SUCCEEDED", 1)


def test_the_operator_and_the_command_line_refuse_it_in_the_same_words(
    dsn: str, queue: TaskQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_taskq.operators import TaskQProcessOperator
    from tests.airflow.conftest import connection_json, context_of

    queue.push("work", ["a"])
    monkeypatch.setenv("AIRFLOW_CONN_TASKQ_DEFAULT", connection_json(dsn))
    handler = each(lambda _: None, processes=2)
    with pytest.raises(InvalidArgument, match=r"cannot send .*<lambda> to a process"):
        TaskQProcessOperator(task_id="process", topic="work", python_callable=handler).execute(context_of("process"))
    (tmp_path / "handlers.py").write_text(
        "from airflow_provider_taskq.worker import each\nhandler = each(lambda _: None, processes=2)\n"
    )
    arguments = ["worker", "-t", "work", "handlers:handler", "--drain"]
    monkeypatch.setenv("TASKQ_DSN", dsn)
    command = [sys.executable, "-m", "airflow_provider_taskq.cli", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 2
    assert "Error: cannot send <lambda> to a process" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert only_task(queue) == ("READY", 0)
