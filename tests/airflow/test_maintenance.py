from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_taskq.operators import TaskQHealthOperator
from airflow_provider_taskq.queue import Result, State, TaskQueue, ticks_daily
from tests.airflow.conftest import Connect, context_of
from tests.airflow.dag_runner import run_dags

EXAMPLE = Path(__file__).parents[2] / "example_dags" / "taskq_maintenance.py"


@pytest.mark.slow
def test_the_maintenance_dags_keep_a_queue_in_order(
    tmp_path: Path, dsn: str, queue: TaskQueue, conn: psycopg.Connection
) -> None:
    done, stuck = queue.push("work", ["done", "stuck"])
    worker = queue.register("worker")
    queue.complete(worker, dict.fromkeys(queue.poll("work", worker), Result.SUCCESS))
    conn.execute(
        "UPDATE taskq_internal.task SET created = created - interval '31 days' WHERE sequence = %s", (done.sequence,)
    )
    queue.claim("work", worker, 1)
    conn.execute("UPDATE taskq_internal.owner SET lease_until = clock_timestamp() - interval '1 minute'")

    before = datetime.now(UTC)
    report = run_dags(tmp_path, dsn, EXAMPLE, "taskq_watch", "taskq_ticks", "taskq_purge")
    reports = queue.page("reports")

    assert report["import_errors"] == {}
    assert report["states"] == dict.fromkeys(["taskq_watch", "taskq_ticks", "taskq_purge"], "success")
    xcoms = report["xcoms"]
    assert xcoms["taskq_watch.expire[-1].return_value"] == {"expired": 1}
    assert xcoms["taskq_purge.purge[-1].return_value"]["purged"] == 1
    assert [(task.sequence, task.state) for task in queue.page("work")] == [(stuck.sequence, State.READY)]
    assert xcoms["taskq_ticks.ticks[-1].return_value"]["installed"] == len(reports)
    # Their number depends on time changes, and their times on when the test runs.
    assert sorted(report.available_at for report in reports) in [
        ticks_daily([time(6), time(18)], "Europe/Berlin", moment, timedelta(days=2))
        for moment in (before, reports[0].created)
    ]
    assert xcoms["taskq_watch.health[-1].return_value"]["critical"] == 0


@pytest.mark.slow
def test_pushes_emit_events_of_assets_and_links_are_stored(tmp_path: Path, dsn: str, queue: TaskQueue) -> None:
    """The topic of a push is a constant, a template, or mapped."""
    file = tmp_path / "emitting.py"
    file.write_text(
        "from airflow.sdk import DAG\n"
        "from airflow_provider_taskq.assets import topic_asset\n"
        "from airflow_provider_taskq.operators import TaskQPushOperator\n"
        "given = {'tasks': ['a', 'b'], 'emit_asset': True, 'create_topic': True}\n"
        "with DAG('emit', schedule=None, params={'topic': 'a b&c'}):\n"
        "    TaskQPushOperator(task_id='known', topic='work', **given)\n"
        "    TaskQPushOperator(task_id='rendered', topic='{{ params.topic }}', **given)\n"
        "    TaskQPushOperator.partial(task_id='mapped', **given).expand(topic=['one', 'two'])\n"
        "with DAG('wait', schedule=topic_asset('work')):\n"
        "    pass\n"
    )
    report = run_dags(tmp_path, dsn, file, "emit")
    assert report["states"] == {"emit": "success"}
    events = dict(report["events"])
    assert set(events) == {f"taskq://taskq_default/{topic}" for topic in ("work", "a%20b%26c", "one", "two")}
    pushed = queue.page("work")
    assert events["taskq://taskq_default/work"] == {
        "topic": "work",
        "pushed": 2,
        "first": pushed[0].sequence,
        "last": pushed[1].sequence,
    }
    links = {name: text for name, text in report["xcoms"].items() if "_link_" in name}
    assert links == {
        f"emit.{task}._link_TaskQTopicLink": f"plugin/taskq?topic={topic}&conn_id=taskq_default"
        for task, topic in [
            ("known[-1]", "work"),
            ("rendered[-1]", "a+b%26c"),
            ("mapped[0]", "one"),
            ("mapped[1]", "two"),
        ]
    }


def health(**arguments: Any) -> dict[str, Any]:
    operator = TaskQHealthOperator(task_id="health", **arguments)
    operator.render_template_fields(context_of())
    return operator.execute(context_of())


@pytest.fixture
def neglected(queue: TaskQueue, conn: psycopg.Connection) -> None:
    """Create a topic whose task has been due for two days."""
    queue.push("work", ["a"])
    conn.execute("UPDATE taskq_internal.task SET created = created - interval '2 days'")
    conn.execute("UPDATE taskq_internal.live SET available_at = available_at - interval '2 days'")


@pytest.mark.usefixtures("airflow_connection", "neglected")
class TestHealth:
    def test_logs_and_counts_its_findings(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = health()
        assert (result["worst"], result["critical"]) == ("CRITICAL", 1)
        (line,) = [line for line in capsys.readouterr().out.splitlines() if "error" in line]
        assert "no worker seems to poll it" in line

    def test_fails_at_the_given_severity(self) -> None:
        with pytest.raises(AirflowException, match="health is CRITICAL: waiting tasks: topic 'work'"):
            health(fail_at="{{ 'WARNING' }}")

    @pytest.mark.parametrize("patience", [timedelta(days=3), "{{ 3 * 86400 }}"])
    def test_does_not_fail_within_its_patience(self, patience: Any) -> None:
        assert health(fail_at="CRITICAL", patience=patience)["critical"] == 0


def test_health_of_a_database_without_the_schema_fails_with_a_clear_error(
    connect_airflow: Connect, empty_dsn: str
) -> None:
    connect_airflow(dsn=empty_dsn)
    with pytest.raises(Exception, match="schema"):
        health()
