from datetime import timedelta
from typing import Any

import psycopg
import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_taskq.operators import TaskQHealthOperator
from airflow_provider_taskq.queue import TaskQueue
from tests.airflow.conftest import Connect, context_of
from tests.internals import age_tasks

pytestmark = pytest.mark.promise("Health names each problem of the queue, and the session that causes it")


def health(**arguments: Any) -> dict[str, Any]:
    operator = TaskQHealthOperator(task_id="health", **arguments)
    operator.render_template_fields(context_of())
    return operator.execute(context_of())


@pytest.fixture
def neglected(queue: TaskQueue, conn: psycopg.Connection) -> None:
    """Create a topic whose task has been due for two days."""
    queue.push("work", ["a"])
    age_tasks(conn, timedelta(days=2))


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
