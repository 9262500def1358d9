"""DAGs that run by `dag.test()`, one after the other in one process, because Airflow needs seconds to start."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskq.queue import Result, State, Task, TaskQueue, connect, ticks_daily
from tests.airflow.dag_runner import run_dags
from tests.internals import age_tasks, lapse_lease

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("The examples, and the code of each page of this site, run as they are written"),
]

MARK = "marked-payload"
DAGS = Path(__file__).parent / "dags"
EXAMPLES = Path(__file__).parents[2] / "example_dags"
FILES = (DAGS / "outputs.py", *(EXAMPLES / f"taskq_{name}.py" for name in ("maintenance", "handler", "push")))
CALLBACKS = f"""
from airflow.sdk import DAG, task
from airflow_provider_taskq.notifications import TaskQNotifier
def said(what):
    return TaskQNotifier(topic='callbacks', identifier=what + '/{{{{ dag.dag_id }}}}', payload='{MARK}')
def named(what):
    return TaskQNotifier(topic='callbacks', identifier=what + '/{{{{ ti.task_id }}}}', payload='{{{{ run_id }}}}')
shared = {{'on_failure_callback': named('failed'), 'on_success_callback': named('passed')}}
with DAG('bad', schedule=None, on_failure_callback=said('bad'), default_args=shared):
    @task
    def one(): pass
    @task
    def two(): raise RuntimeError('on purpose')
    one() >> two()
with DAG('good', schedule=None, on_success_callback=said('good'), default_args=shared):
    @task
    def three(): pass
    three()
"""
EMITTING = """
from airflow.sdk import DAG
from airflow_provider_taskq.assets import topic_asset
from airflow_provider_taskq.operators import TaskQPushOperator
given = {'tasks': ['a', 'b'], 'emit_asset': True, 'create_topic': True}
with DAG('emit', schedule=None, params={'topic': 'a b&c'}):
    TaskQPushOperator(task_id='known', topic='known', **given)
    TaskQPushOperator(task_id='rendered', topic='{{ params.topic }}', **given)
    TaskQPushOperator.partial(task_id='mapped', **given).expand(topic=['one', 'two'])
with DAG('wait', schedule=topic_asset('known')):
    pass
"""
# The DAGs in the order of their runs. A poll of any topic may expire the lease that the first one has to expire.
SUCCEED = "taskq_watch taskq_ticks taskq_purge outputs emit taskq_handler taskq_push good"
STATES = {**dict.fromkeys(SUCCEED.split(), "success"), "bad": "failed"}


@dataclass(frozen=True)
class Runs:
    """The queue after the runs, what Airflow stored and printed, and the time before the runs."""

    queue: TaskQueue
    xcoms: dict[str, Any]
    events: dict[str, Any]
    output: str
    before: datetime
    stuck: Task


@pytest.fixture(scope="module")
def runs(make_database: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Run all DAGs. A topic belongs to one of them; those of the maintenance work on all, and come first."""
    home, dsn = tmp_path_factory.mktemp("runs"), make_database("runs")
    written = {home / "callbacks.py": CALLBACKS, home / "emitting.py": EMITTING}
    for file, text in written.items():
        file.write_text(text)
    with connect(dsn, autocommit=True) as connection:
        queue = TaskQueue(connection)
        for topic in ("later", "results", "callbacks", "known", "neglected"):
            queue.create_topic(topic)
        stuck = neglect(queue)
        queue.push("later", ["x"])
        before = datetime.now(UTC)
        report = run_dags(home, dsn, [*FILES, *written], *STATES)
        assert report["import_errors"] == {}
        assert report["states"] == STATES, report["output"][-5000:]
        yield Runs(queue, report["xcoms"], dict(report["events"]), report["output"], before, stuck)


def neglect(queue: TaskQueue) -> Task:
    """Create a task that ended long ago, and one whose lease has lapsed; return the latter."""
    done, stuck = queue.push("neglected", ["done", "stuck"])
    worker = queue.register("worker")
    queue.complete(worker, dict.fromkeys(queue.poll("neglected", worker), Result.SUCCESS))
    age_tasks(queue.conn, timedelta(days=31), [done.sequence])
    queue.claim("neglected", worker, 1)
    lapse_lease(queue.conn, ago=timedelta(minutes=1))
    return stuck


def test_each_value_is_read_by_its_name_in_a_run_of_a_dag(runs: Runs) -> None:
    claim = runs.xcoms["outputs.gate[-1].return_value"]
    assert runs.xcoms["outputs.results[-1].return_value"] == {
        "owner": claim["owner"],
        "fence": claim["fence"],
        "completed": 2,
        "handled": 0,
        "ready": 1,
    }
    assert runs.xcoms["outputs.release[-1].released"] == 0


def test_callbacks_of_dags_and_tasks_push(runs: Runs) -> None:
    pushed = {task.identifier: task.payload for task in runs.queue.page("callbacks")}
    assert set(pushed) == {"passed/one", "failed/two", "passed/three", "bad/bad", "good/good"}
    assert pushed["bad/bad"] == MARK
    assert pushed["failed/two"].startswith("manual__")  # type: ignore[union-attr]
    assert MARK not in runs.output


def test_the_maintenance_dags_keep_a_queue_in_order(runs: Runs) -> None:
    reports = runs.queue.page("reports")
    assert runs.xcoms["taskq_watch.expire[-1].return_value"] == {"expired": 1}
    assert runs.xcoms["taskq_purge.purge[-1].return_value"]["purged"] == 1
    left = [(task.sequence, task.state) for task in runs.queue.page("neglected")]
    assert left == [(runs.stuck.sequence, State.READY)]
    assert runs.xcoms["taskq_ticks.ticks[-1].return_value"]["installed"] == len(reports)
    # Their number depends on time changes, and their times on when the test runs.
    assert sorted(report.available_at for report in reports) in [
        ticks_daily([time(6), time(18)], "Europe/Berlin", moment, timedelta(days=2))
        for moment in (runs.before, reports[0].created)
    ]
    assert runs.xcoms["taskq_watch.health[-1].return_value"]["critical"] == 0


def test_pushes_emit_events_of_assets_and_links_are_stored(runs: Runs) -> None:
    """The topic of a push is a constant, a template, or mapped."""
    assert set(runs.events) == {f"taskq://taskq_default/{topic}" for topic in ("known", "a%20b%26c", "one", "two")}
    pushed = runs.queue.page("known")
    assert runs.events["taskq://taskq_default/known"] == {
        "topic": "known",
        "pushed": 2,
        "first": pushed[0].sequence,
        "last": pushed[1].sequence,
    }
    links = {name: text for name, text in runs.xcoms.items() if name.startswith("emit.") and "_link_" in name}
    assert links == {
        f"emit.{task}._link_TaskQTopicLink": f"plugin/taskq?topic={topic}&conn_id=taskq_default"
        for task, topic in [
            ("known[-1]", "known"),
            ("rendered[-1]", "a+b%26c"),
            ("mapped[0]", "one"),
            ("mapped[1]", "two"),
        ]
    }


def test_the_examples_of_pushes_and_of_a_handler_run_in_a_dag(runs: Runs) -> None:
    returned = json.loads(json.dumps(runs.xcoms["taskq_handler.deliver[-1].return_value"]))
    assert (returned["succeeded"], returned["filtered"]) == (2, 3)
    assert sorted(info.identifier for info in runs.queue.page("parcels", state=State.SUCCEEDED)) == ["4711", "4712"]
    planes = ["D-ABCD", "N14228", "N24211"]
    for topic in ("planes", "registrations"):
        assert sorted(task.identifier for task in runs.queue.page(topic)) == planes
    rows = runs.queue.conn.execute("SELECT array_agg(tail_number ORDER BY tail_number) FROM planes")
    assert rows.fetchone() == (planes,)
