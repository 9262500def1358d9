"""A run of a DAG in dags/claims.py: the tasks that it holds, and the actions of an Airflow user on it."""

from dataclasses import dataclass
from typing import Any

from airflow_provider_taskq.queue import State, TaskQueue
from demo.airflow_api import until
from tests.airflow.chaos_site import Installation
from tests.internals import lapse_lease

SECONDS = 150


@dataclass(frozen=True)
class Work:
    """One try of the task `work`: the tasks that it held, its process id, and the id of its worker."""

    try_number: int
    tasks: list[str]
    pid: int
    worker: int


class Run:
    """A run on a topic of the same name with three tasks, of which its gate claims two."""

    dag_id = "claims"

    def __init__(
        self, airflow: Installation, queue: TaskQueue, run_id: str, *, ready: bool = True, **conf: str
    ) -> None:
        self.site, self.airflow, self.queue, self.id = airflow.site, airflow, queue, run_id
        self.owner = f"{self.dag_id}/{run_id}/gate/-1"
        queue.create_topic(run_id)
        if ready:
            self.push()
        self.conf = {"topic": run_id, **conf}
        self.begin()

    def begin(self) -> None:
        self.site.trigger(self.dag_id, self.id, self.conf)

    def push(self) -> None:
        self.queue.push(self.id, ["a", "b", "c"])

    def works(self) -> list[Work]:
        rows = self.queue.conn.execute(
            "SELECT try, tasks, pid, worker FROM worked WHERE run_id = %s ORDER BY at", (self.id,)
        )
        return [Work(*row) for row in rows.fetchall()]

    def worked(self, times: int = 1) -> list[Work]:
        """Wait until the work has started this many times."""
        return until(
            lambda: works if len(works := self.works()) >= times else None,
            SECONDS,
            lambda: f"{self.works()}; {self.site.task_states(self.dag_id, self.id)}",
        )

    def succeeds(self) -> None:
        self.site.wait_run(self.dag_id, self.id, {"success"}, SECONDS)

    def fails(self) -> None:
        self.site.wait_run(self.dag_id, self.id, {"failed"}, SECONDS)

    def clear(self, task_id: str) -> None:
        """Clear a task with its downstream tasks, as a user does."""
        body = {"dry_run": False, "dag_run_id": self.id, "task_ids": [task_id], "only_failed": False}
        self.site.post(f"dags/{self.dag_id}/clearTaskInstances", {**body, "include_downstream": True})

    def mark_failed(self, task_id: str) -> None:
        self.site.patch(f"dags/{self.dag_id}/dagRuns/{self.id}/taskInstances/{task_id}", {"new_state": "failed"})

    def tasks(self) -> list[tuple[str, str, int, int]]:
        """Return identifier, state, attempts and crashes of each task."""
        return [(task.identifier, task.state.name, task.attempt, task.crashes) for task in self.queue.page(self.id)]

    def holders(self) -> list[str | None]:
        """Return the owner of each task; None for a task that is not held."""
        return [task.owner if task.state is State.ACTIVE else None for task in self.queue.page(self.id)]

    def returned(self, task_id: str) -> Any:
        path = f"dags/{self.dag_id}/dagRuns/{self.id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.site.get(path, stringify="false")["value"]

    def lapse(self) -> int:
        """Let the lease lapse, and expire it as the maintenance DAG does."""
        lapse_lease(self.queue.conn, self.owner)
        return self.queue.expire()

    def held_by_it(self) -> None:
        assert self.holders() == [self.owner, self.owner, None]

    def completed_once(self) -> None:
        """Assert that two tasks succeeded in one attempt without a crash, and that the third was never polled."""
        assert self.tasks() == [("a", "SUCCEEDED", 1, 0), ("b", "SUCCEEDED", 1, 0), ("c", "READY", 0, 0)]
