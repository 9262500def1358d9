"""Gates, claims and pushes with Airflow's own processes: scheduler, workers, triggerer, api-server."""

import json
import re

import pytest

from airflow_provider_taskq.queue import State, TaskQueue
from demo.airflow_site import AirflowSite
from tests.airflow.site import MARK, instance, returned, xcoms

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.promise("A gate opens when its topic is ready, in every mode"),
]


@pytest.fixture(autouse=True, scope="module")
def dags(site: AirflowSite) -> None:
    """Wait until Airflow knows the DAGs of these tests."""
    site.wait_dags("push", "push_all_ways", "gate_only", "claim", "many", "many_claims", "started", "timeouts")


@pytest.fixture
def queue(site_queue: TaskQueue) -> TaskQueue:
    return site_queue


def test_a_deferred_gate_is_opened_by_a_push(site: AirflowSite, queue: TaskQueue) -> None:
    queue.create_topic("work")
    gate = site.trigger("gate_only", conf={"topic": "work"})
    site.wait_task("gate_only", gate, "gate", {"deferred"}, 300)
    assert xcoms(site, "gate_only", gate, "gate") <= {"_link_TaskQTopicLink"}, "the gate is closed"
    push = site.trigger("push", conf={"topic": "work", "count": 3})
    assert site.wait_run("push", push, {"success"}, 300) == "success"
    site.wait_run("gate_only", gate, {"success"}, 300)
    assert returned(site, "gate_only", gate, "gate") == {"topic": "work", "ready": 1}
    assert xcoms(site, "gate_only", gate, "gate") >= {"return_value", "topic", "ready"}
    pushed = queue.page("work")
    assert returned(site, "push", push, "function") == {
        "topic": "work",
        "pushed": 3,
        "first": pushed[0].sequence,
        "last": pushed[-1].sequence,
    }
    assert {json.dumps(task.payload) for task in pushed} == {json.dumps({"mark": MARK})}


@pytest.mark.promise("an Airflow task with a claim is retried or cleared")
def test_a_retry_after_the_claim_continues_with_the_same_tasks(site: AirflowSite, queue: TaskQueue) -> None:
    queue.create_topic("claimed")
    queue.push("claimed", ["a", "b", "c"])
    run = site.trigger("claim", conf={"topic": "claimed"})
    owner = f"claim/{run}/gate/-1"
    site.wait_run("claim", run, {"success"}, 300)
    assert f"Before try 2 the tasks are held by {[owner, owner, None]}" in site.log_text()
    claim = returned(site, "claim", run, "gate")
    assert {**claim, "fence": 0} == {"topic": "claimed", "owner": owner, "fence": 0, "claimed": 2}
    assert returned(site, "claim", run, "complete")["completed"] == 2
    page = queue.page("claimed")
    assert [task.state for task in page] == [State.SUCCEEDED, State.SUCCEEDED, State.READY]
    assert [task.attempt for task in page] == [1, 1, 0]
    assert instance(site, "claim", run, "gate")["try_number"] == 2


@pytest.mark.parametrize("dag_id", ["many", "many_claims"])
def test_gates_that_open_right_after_they_deferred_all_succeed(
    site: AirflowSite, queue: TaskQueue, dag_id: str
) -> None:
    """Airflow fails tasks that resume too soon (docs/why/evidence/decisions.md). These end in triggerers."""
    topics = [f"{dag_id}-{number}" for number in range(8)]
    for topic in topics:
        queue.create_topic(topic)
    run = site.trigger(dag_id)
    for number, topic in enumerate(topics):
        site.wait_task(dag_id, run, f"gate[{number}]", {"deferred"}, 300)
        queue.push(topic, ["a"])
    assert site.wait_run(dag_id, run, {"success"}, 300) == "success"


@pytest.mark.promise("A deferred gate uses no worker slot")
def test_a_gate_that_starts_in_the_triggerer_uses_no_worker(site: AirflowSite, queue: TaskQueue) -> None:
    """A task instance without a worker has no host name, no process id and no queued time."""
    queue.create_topic("started")
    run = site.trigger("started", conf={"topic": "started"})
    site.wait_task("started", run, "gate", {"deferred"}, 300)
    queue.push("started", ["a", "b", "c"])
    site.wait_task("started", run, "complete", {"success"}, 300)
    site.wait_task("started", run, "state", {"success"}, 300)
    for task_id in ("gate", "state"):
        ended = instance(site, "started", run, task_id)
        assert (ended["state"], ended["pid"], ended["queued_when"], ended["hostname"]) == ("success", None, None, "")
    claim = returned(site, "started", run, "gate")
    assert (claim["owner"], claim["claimed"]) == (f"started/{run}/gate/-1", 2)
    assert returned(site, "started", run, "complete") == {
        "topic": "started",
        "owner": claim["owner"],
        "result": "SUCCESS",
        "completed": 2,
    }
    assert returned(site, "started", run, "state") == {"topic": "started", "states": {"SUCCEEDED": 2}}
    assert site.wait_run("started", run, {"failed"}, 300) == "failed"
    assert site.task_states("started", run)["unknown"] == "failed"


def test_gates_time_out_and_fail_when_their_topic_is_dropped(site: AirflowSite, queue: TaskQueue) -> None:
    queue.create_topic("never")
    queue.create_topic("dropped")
    run = site.trigger("timeouts")
    site.wait_task("timeouts", run, "dropped", {"deferred"}, 300)
    queue.drop_topic("dropped")
    assert site.wait_run("timeouts", run, {"failed"}, 300) == "failed"
    states = site.task_states("timeouts", run)
    assert states == {"skipped": "skipped", "unknown": "failed", "dropped": "failed", "rescheduled": "success"}
    log = site.log_text()
    assert "topic 'nowhere' does not exist; create it with: taskq topics create nowhere" in log
    # The drop may come before the first check of the trigger, which then never saw the topic.
    gone = "topic 'dropped' (was dropped; create it again|does not exist; create it) with: taskq topics create dropped"
    assert re.search(gone, log)


def test_pushes_in_all_ways_without_showing_a_payload(site: AirflowSite, queue: TaskQueue) -> None:
    run = site.trigger("push_all_ways")
    site.wait_run("push_all_ways", run, {"success"}, 300)
    pushed = sorted(task.identifier for task in queue.page("ways"))
    assert pushed == [f"dict-{run}", "object", "xcom-0", "xcom-1", "xcom-2"]
    shown = instance(site, "push_all_ways", run, "list")["rendered_fields"]["tasks"]
    assert shown == {"count": 2, "identifiers": [f"dict-{run}", "object"]}
