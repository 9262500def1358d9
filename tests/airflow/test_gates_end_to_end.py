"""Gates on states and junctures with Airflow's own processes."""

from datetime import timedelta

import pytest

from airflow_provider_taskq.queue import NewTask, Result, State, TaskQueue
from demo.airflow_api import until
from demo.airflow_site import AirflowSite
from tests.airflow.site import instance, returned, xcoms

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.promise("A gate on task states opens once all are reached, and fails at a failed state"),
    pytest.mark.promise("A juncture releases each group once under its name, also after a crash"),
]


@pytest.fixture
def queue(site: AirflowSite, site_queue: TaskQueue) -> TaskQueue:
    site.wait_dags("state_gate", "juncture_gate", "gate_logs")
    return site_queue


def end(queue: TaskQueue, topic: str, result: Result) -> None:
    """End the next task of a topic."""
    owner = queue.register("end")
    queue.complete(owner, dict.fromkeys(queue.poll(topic, owner), result))


def test_a_deferred_gate_fails_with_its_message_and_without_a_retry(site: AirflowSite, queue: TaskQueue) -> None:
    queue.create_topic("failing")
    queue.push("failing", ["a", "b"])
    run = site.trigger("state_gate", conf={"topic": "failing"})
    site.wait_task("state_gate", run, "gate", {"deferred"}, 300)
    end(queue, "failing", Result.FAILURE)
    assert site.wait_run("state_gate", run, {"failed"}, 300) == "failed"
    assert site.task_states("state_gate", run) == {"gate": "failed", "again": "upstream_failed"}
    assert instance(site, "state_gate", run, "gate")["try_number"] == 1
    assert xcoms(site, "state_gate", run, "gate") <= {"_link_TaskQTopicLink"}
    assert "1 of 2 tasks of topic 'failing' are in a failed state: 'a' is FAILED" in site.log_text()


def test_a_deferred_juncture_releases_each_group_when_it_is_complete(site: AirflowSite, queue: TaskQueue) -> None:
    queue.create_topic("joined")
    run = site.trigger("juncture_gate", conf={"topic": "joined"})
    site.wait_task("juncture_gate", run, "gate", {"deferred"}, 300)
    queue.push("joined", [NewTask("a", suspended=True), NewTask("c", suspended=True)])

    def states() -> list[State]:
        return [task.state for task in queue.page("joined")]

    until(lambda: True if states() == [State.SUSPENDED, State.READY] else None, 90, lambda: str(states()))
    assert site.run_state("juncture_gate", run) == "running"
    queue.push("joined", [NewTask("b", suspended=True)])
    assert site.wait_run("juncture_gate", run, {"success"}, 300) == "success"
    assert returned(site, "juncture_gate", run, "gate") == {"topic": "joined", "groups": 2}
    assert {task.state for task in queue.page("joined")} == {State.READY}


def task_log(site: AirflowSite, dag_id: str, run: str, task_id: str) -> list[str]:
    """Return the log of a task's first try as Airflow shows it, with the lines of its trigger."""
    path = f"dags/{dag_id}/dagRuns/{run}/taskInstances/{task_id}/logs/1"
    return [line["event"] for line in site.get(path, full_content="true")["content"] if isinstance(line, dict)]


def test_a_gate_logs_each_change_once_in_its_own_log_in_all_modes(site: AirflowSite, queue: TaskQueue) -> None:
    queue.create_topic("logged")
    queue.push("logged", [NewTask("later", delay=timedelta(days=1))])
    run = site.trigger("gate_logs")
    closed = "Waits for 2 ready tasks of topic 'logged'; 0 ready, 1 scheduled."
    modes = ("poke", "reschedule", "deferrable")

    def logged(text: str) -> None:
        def seen() -> bool | None:
            return True if all(text in "".join(task_log(site, "gate_logs", run, mode)) for mode in modes) else None

        until(seen, 120, lambda: str({mode: task_log(site, "gate_logs", run, mode) for mode in modes}))

    waits = {"poke": "running", "reschedule": "up_for_reschedule", "deferrable": "deferred"}
    for mode in modes:
        site.wait_task("gate_logs", run, mode, {waits[mode]}, 300)
    logged(closed)
    queue.conn.execute("SELECT set_config('taskq.actor', 'alice', false)")
    queue.pause_topic("logged")
    logged("topic paused by alice since 2")
    queue.resume_topic("logged")
    queue.push("logged", ["a", "b"])
    assert site.wait_run("gate_logs", run, {"success"}, 300) == "success"
    for mode in modes:
        lines = [line for line in task_log(site, "gate_logs", run, mode) if line.startswith("Waits for ")]
        # The worker logs it when the gate defers, and the trigger when it starts to wait.
        assert lines[0] == closed, mode
        assert sum("topic paused by alice" in line for line in lines) == 1, (mode, lines)
        assert len(lines) <= 5, (mode, lines)
