"""Two hundred deferred waits in one real triggerer, in which no other gate waits."""

import psycopg
import pytest

from demo.airflow_api import until
from tests.airflow.chaos_site import Installation
from tests.airflow.dags.many import GATES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.promise("A deferred gate uses no worker slot"),
]

ENDS = 400  # seconds until a step fails; on a machine of its own a step takes a tenth of that
SINGLY = range(0, GATES, GATES // 10)


def test_two_hundred_gates_wait_on_two_connections_and_all_open(airflow: Installation) -> None:
    """One mapped gate with two hundred instances, a topic for each, in Airflow's own processes.

    The scheduler defers them itself (`start_from_trigger`), so that no worker has to start them. From then on they wait
    like other gates, and their triggers end them. Other tests cover the first check in a worker and its deferral.

    Ten gates open one after the other while the rest wait, then the rest open together. The connections are counted
    from before the first wait until the last gate is open.
    """
    airflow.site.wait_dags("many_waits")
    until(lambda: not airflow.busy() or None, ENDS, lambda: f"other tests left {airflow.busy()}")
    connections = Connections(airflow)
    with airflow.queue() as queue:
        for number in range(GATES):
            queue.create_topic(f"gate-{number}")
        run = airflow.site.trigger("many_waits", "many")
        until(
            lambda: True if connections.seen() and deferred(airflow) == GATES else None,
            ENDS,
            lambda: f"{deferred(airflow)} wait; {dict(airflow.states('many_waits', run, 'gate'))}",
        )
        assert airflow.states("many_waits", run, "gate") == {"deferred": GATES}
        for opened, number in enumerate(SINGLY, start=1):
            queue.push(f"gate-{number}", ["task"])
            succeeded(airflow, run, opened, connections)
        assert airflow.states("many_waits", run, "gate") == {"success": len(SINGLY), "deferred": GATES - len(SINGLY)}
        with queue.conn.transaction():
            for number in set(range(GATES)) - set(SINGLY):
                queue.push(f"gate-{number}", ["task"])
        succeeded(airflow, run, GATES, connections)
    assert airflow.site.wait_run("many_waits", run, {"success"}, ENDS) == "success"
    assert airflow.tries("many_waits", run, "gate") == {1: GATES}
    assert 1 <= connections.most <= 2


class Connections:
    """Counts the triggerer's connections to the queue database, and keeps the maximum."""

    def __init__(self, airflow: Installation) -> None:
        self._dsn = airflow.queue_dsn
        self.most = 0

    def seen(self) -> bool:
        """Count now. No task runs in a worker, so all connections but the test's own are the triggerer's."""
        with psycopg.connect(self._dsn, application_name="test") as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'airflow-taskq'"
            ).fetchone()
        assert row is not None
        self.most = max(self.most, row[0])
        return True


def deferred(airflow: Installation) -> int:
    """Return how many triggers run, by their logs, which Airflow creates when a trigger starts."""
    return len(list((airflow.site.home / "logs" / "dag_id=many_waits").rglob("*.trigger.*.log")))


def succeeded(airflow: Installation, run: str, count: int, connections: Connections) -> None:
    """Wait until this many gates have succeeded."""
    until(
        lambda: True if connections.seen() and airflow.states("many_waits", run, "gate")["success"] == count else None,
        ENDS,
        lambda: f"{dict(airflow.states('many_waits', run, 'gate'))}, not {count} success",
        pause=0.1,
    )
