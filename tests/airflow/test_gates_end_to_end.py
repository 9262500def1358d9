"""Gates on states and junctures with Airflow's own processes."""

from collections.abc import Iterator

import pytest

from airflow_provider_taskq.demo.airflow_api import until
from airflow_provider_taskq.demo.airflow_site import AirflowSite
from airflow_provider_taskq.queue import NewTask, Result, State, TaskQueue, connect
from tests.airflow.site import instance, returned, xcoms

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


@pytest.fixture
def queue(site: AirflowSite, databases: tuple[str, str]) -> Iterator[TaskQueue]:
    site.wait_dags("state_gate", "juncture_gate")
    with connect(databases[0], autocommit=True) as connection:
        yield TaskQueue(connection)


def end(queue: TaskQueue, topic: str, result: Result) -> None:
    """Ends the next task of a topic."""
    owner = queue.register("end")
    queue.complete(owner, dict.fromkeys(queue.poll(topic, owner), result))


def test_a_deferred_gate_opens_when_tasks_have_succeeded(site: AirflowSite, queue: TaskQueue) -> None:
    queue.create_topic("states")
    queue.push("states", ["a", "b"])
    run = site.trigger("state_gate", conf={"topic": "states"})
    site.wait_task("state_gate", run, "gate", {"deferred"}, 60)
    end(queue, "states", Result.SUCCESS)
    end(queue, "states", Result.SUCCESS)
    assert site.wait_run("state_gate", run, {"success"}, 90) == "success"
    assert returned(site, "state_gate", run, "gate") == {"topic": "states", "states": {"SUCCEEDED": 2}}
    assert instance(site, "state_gate", run, "gate")["try_number"] == 1


def test_a_deferred_gate_fails_with_its_sentence_and_without_a_retry(site: AirflowSite, queue: TaskQueue) -> None:
    queue.create_topic("failing")
    queue.push("failing", ["a", "b"])
    run = site.trigger("state_gate", conf={"topic": "failing"})
    site.wait_task("state_gate", run, "gate", {"deferred"}, 60)
    end(queue, "failing", Result.FAILURE)
    assert site.wait_run("state_gate", run, {"failed"}, 90) == "failed"
    assert site.task_states("state_gate", run) == {"gate": "failed", "again": "upstream_failed"}
    assert instance(site, "state_gate", run, "gate")["try_number"] == 1
    assert xcoms(site, "state_gate", run, "gate") <= {"_link_TaskQTopicLink"}
    assert "Of 2 tasks of topic 'failing', 'a' is FAILED: the gate stays closed." in site.log_text()


def test_a_deferred_juncture_releases_groups_as_they_come(site: AirflowSite, queue: TaskQueue) -> None:
    queue.create_topic("joined")
    run = site.trigger("juncture_gate", conf={"topic": "joined"})
    site.wait_task("juncture_gate", run, "gate", {"deferred"}, 60)
    queue.push("joined", [NewTask("a", suspended=True), NewTask("c", suspended=True)])

    def states() -> list[State]:
        return [task.state for task in queue.page("joined")]

    until(lambda: True if states() == [State.SUSPENDED, State.READY] else None, 90, lambda: str(states()))
    with pytest.raises(Exception, match=r"juncture_gate"):
        site.wait_run("juncture_gate", run, {"success", "failed"}, 5)
    assert states() == [State.SUSPENDED, State.READY]
    queue.push("joined", [NewTask("b", suspended=True)])
    assert site.wait_run("juncture_gate", run, {"success"}, 90) == "success"
    assert returned(site, "juncture_gate", run, "gate") == {"topic": "joined", "groups": 2}
    assert {task.state for task in queue.page("joined")} == {State.READY}
