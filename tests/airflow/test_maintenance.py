"""TaskQExpireOperator and TaskQHealthOperator."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_taskq.operators import TaskQExpireOperator, TaskQHealthOperator
from airflow_provider_taskq.queue import State, TaskQueue, TopicPolicy
from tests.airflow.conftest import executed
from tests.internals import age_tasks, lapse_lease

pytestmark = [
    pytest.mark.usefixtures("airflow_connection"),
    pytest.mark.promise("Health names each problem of the queue, and the session that causes it"),
]


@pytest.mark.promise("An operator does what its call of the queue does, in one transaction")
@pytest.mark.parametrize("grace", [timedelta(minutes=2), 120, "{{ 60 * 2 }}"])
def test_expires_lapsed_leases_of_all_topics_by_policy_after_the_grace(
    queue: TaskQueue, conn: psycopg.Connection, grace: Any
) -> None:
    queue.create_topic("strict", TopicPolicy(on_expiry="expire"))
    for topic in ("work", "strict"):
        queue.push(topic, ["a"])
        queue.claim(topic, queue.register(topic), 1)

    def expire() -> Any:
        return executed(TaskQExpireOperator(task_id="expire", grace=grace))

    lapse_lease(conn, ago=timedelta(minutes=1))
    assert expire() == {"expired": 0}
    lapse_lease(conn, ago=timedelta(minutes=3))
    assert expire() == {"expired": 2}
    assert [queue.page(topic)[0].state for topic in ("work", "strict")] == [State.READY, State.EXPIRED]


def health(**arguments: Any) -> Any:
    return executed(TaskQHealthOperator(task_id="health", **arguments))


class TestHealth:
    @pytest.fixture(autouse=True)
    def neglected(self, queue: TaskQueue, conn: psycopg.Connection) -> None:
        """A topic whose task has been due for two days."""
        queue.push("work", ["a"])
        age_tasks(conn, timedelta(days=2))

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
