"""Claims of a task whose retry reconnects to the driver that an earlier try submitted.

Spark runs a Python driver apart from its submitter only on YARN and Kubernetes, so chaos_driver.py replaces it. The
base class of SparkSubmitOperator decides whether to reconnect, in a real Airflow.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_taskq.queue import TaskQueue
from demo.airflow_api import until
from tests.airflow.chaos_run import SECONDS, Run
from tests.airflow.chaos_site import Installation

pytest.importorskip("airflow.sdk.bases.resumablejobmixin", reason="Airflow reconnects to drivers from 3.3 on")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.promise("an Airflow task with a claim is retried or cleared"),
]


class Durable(Run):
    """A run whose task `submit` starts a driver for the claim of the gate."""

    dag_id = "durable"

    def jobs(self) -> list[tuple[Any, ...]]:
        """Return state, tasks and submitter of each driver, in the order of their start."""
        return self.queue.conn.execute(
            "SELECT state, tasks, submitter FROM jobs WHERE topic = %s ORDER BY at", (self.id,)
        ).fetchall()

    def driven(self) -> tuple[Any, ...]:
        """Wait until the first driver holds the tasks."""
        return until(
            lambda: jobs[0] if (jobs := self.jobs()) and jobs[0][0] == "RUNNING" else None,
            SECONDS,
            lambda: f"{self.jobs()}; {self.site.task_states(self.dag_id, self.id)}",
        )

    def submitted(self, tries: int) -> None:
        """Wait until this try of `submit` runs."""
        until(
            lambda: (
                True
                if self.airflow.tries(self.dag_id, self.id, "submit")[tries]
                and self.airflow.states(self.dag_id, self.id, "submit")["running"]
                else None
            ),
            SECONDS,
            lambda: f"{self.jobs()}; {self.site.task_states(self.dag_id, self.id)}",
        )

    def ended_again(self, task_id: str) -> None:
        """Wait until the run has ended after a second try of a task."""
        until(
            lambda: True if self.airflow.tries(self.dag_id, self.id, task_id)[2] else None,
            SECONDS,
            lambda: f"{task_id}: {self.airflow.tries(self.dag_id, self.id, task_id)}",
        )
        self.succeeds()

    def worked_on(self) -> list[str]:
        """Return the tasks that drivers worked on."""
        return sorted(task for job in self.jobs() for task in job[1])

    def succeeded(self) -> list[str]:
        """Return the tasks that were completed."""
        return [name for name, state, _, _ in self.tasks() if state == "SUCCEEDED"]

    def end_drivers(self) -> None:
        """Let the drivers end."""
        self.queue.conn.execute("INSERT INTO signals VALUES (%s)", (self.id,))


class NotDurable(Durable):
    """A run in which every try submits a driver of its own."""

    dag_id = "not_durable"


@pytest.fixture(autouse=True, scope="module")
def tables(airflow: Installation) -> Iterator[None]:
    """Create the tables of the drivers, and kill the remaining drivers at the end."""
    with airflow.queue() as queue:
        queue.conn.execute("CREATE TABLE signals (topic text)")
        queue.conn.execute(
            "CREATE TABLE jobs (job text, topic text, state text, tasks text[], submitter integer, driver integer,"
            " at timestamptz DEFAULT clock_timestamp())"
        )
    airflow.site.wait_dags("durable", "not_durable")
    yield
    with airflow.queue() as queue:
        drivers = queue.conn.execute("SELECT driver FROM jobs WHERE state = 'RUNNING'").fetchall()
    for (driver,) in drivers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver, signal.SIGKILL)


@pytest.fixture
def queue(airflow: Installation) -> Iterator[TaskQueue]:
    with airflow.queue() as queue:
        yield queue


def test_a_retry_reconnects_to_the_driver_that_still_holds_the_tasks(airflow: Installation, queue: TaskQueue) -> None:
    run = Durable(airflow, queue, "reconnected", driver="completes")
    _, _, submitter = run.driven()
    fence = queue.owner(run.owner)
    os.kill(submitter, signal.SIGKILL)
    run.submitted(2)
    assert queue.owner(run.owner) == fence
    run.end_drivers()
    run.succeeds()
    assert [job[:2] for job in run.jobs()] == [("FINISHED", ["a", "b"])]
    run.completed_once()


def test_a_gate_that_is_cleared_locks_out_the_driver_and_the_next_one_has_the_same_tasks(
    airflow: Installation, queue: TaskQueue
) -> None:
    run = Durable(airflow, queue, "locked-out", driver="completes")
    run.driven()
    run.clear("gate")
    run.submitted(2)
    run.end_drivers()
    run.succeeds()
    assert [job[:2] for job in run.jobs()] == [("FAILED", ["a", "b"]), ("FINISHED", ["a", "b"])]
    run.completed_once()


@pytest.mark.parametrize(
    ("kind", "worked_on"), [(Durable, ["a", "b"]), (NotDurable, ["a", "b", "c"])], ids=["durable", "not durable"]
)
def test_a_durable_run_cleared_after_its_end_completes_the_tasks_that_its_gate_claimed_again(
    airflow: Installation, queue: TaskQueue, kind: type[Durable], worked_on: list[str]
) -> None:
    """Airflow completes the tasks instead of the driver. If it is not durable, a driver works on the new ones too."""
    run = kind(airflow, queue, f"cleared-{kind.dag_id}", driver="leaves")
    run.end_drivers()
    run.succeeds()
    run.completed_once()
    run.clear("gate")
    run.ended_again("gate")
    assert (run.worked_on(), run.succeeded()) == (worked_on, ["a", "b", "c"])
