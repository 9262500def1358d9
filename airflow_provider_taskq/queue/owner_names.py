"""Names of owners: how Airflow task instances and workers make them, and how a page reads them again.

An owner's name is free text. Two kinds have a form:

- a task instance of Airflow: `dag_id/run_id/task_id/map_index`;
- an owner of a worker: `name/place/number`, where the place is a host, a process id and six hexadecimal digits.

A worker that runs inside a task instance takes the first form as its name. dag_id and task_id have no slash. A
run_id may have slashes if the deployment allows them: the run is everything between the first part and the last two.
"""

import os
import re
import secrets
import socket
from dataclasses import dataclass

_KEY = r"[\w.-]{1,250}"  # what Airflow accepts as dag_id and task_id
_WORKER = re.compile(r"(?P<name>.+)/[^/]+-[0-9]+-[0-9a-f]{6}/[0-9]+", re.DOTALL)
_INSTANCE = re.compile(rf"(?P<dag>{_KEY})/(?P<run>.+)/(?P<task>{_KEY})/(?P<index>-1|[0-9]{{1,9}})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TaskInstanceName:
    """A logical task instance of Airflow, without its try: a retry has the same name, so it finds its own tasks.

    `str()` is the owner's name; `map_index` is -1 if the task is not mapped.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    def __str__(self) -> str:
        return f"{self.dag_id}/{self.run_id}/{self.task_id}/{self.map_index}"

    @classmethod
    def parse(cls, owner: str) -> "TaskInstanceName | None":
        """The task instance that an owner is, or in which an owner's worker runs; None for all other names."""
        worker = _WORKER.fullmatch(owner)
        found = _INSTANCE.fullmatch(worker["name"] if worker else owner)
        return cls(found["dag"], found["run"], found["task"], int(found["index"])) if found else None


def worker_instance_id() -> str:
    """Where a worker runs: host, process id, and six random digits, so that no two workers have the same."""
    return f"{socket.gethostname().replace('/', '-')}-{os.getpid()}-{secrets.token_hex(3)}"


def worker_owner_name(name: str, place: str, number: int) -> str:
    """The name of one owner of a worker."""
    return f"{name}/{place}/{number}"
