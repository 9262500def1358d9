"""Names of owners: how Airflow task instances and workers build them, and how a page parses them.

An owner's name is free text. Two kinds have a form:

- a task instance of Airflow: `dag_id/run_id/task_id/map_index`;
- an owner of a worker: `name/instance/number`, where the instance is a host, a process id and six hexadecimal digits.

A worker that runs inside a task instance has the first form as its name. dag_id and task_id have no slash. A
run_id may have slashes if the deployment allows them: the run is everything between the first part and the last two.
"""

import os
import re
import secrets
import socket
from dataclasses import dataclass

_KEY = r"[\w.-]{1,250}"  # the characters that Airflow accepts in dag_id and task_id
_WORKER = re.compile(r"(?P<name>.+)/[^/]+-[0-9]+-[0-9a-f]{6}/[0-9]+", re.DOTALL)
_INSTANCE = re.compile(rf"(?P<dag>{_KEY})/(?P<run>.+)/(?P<task>{_KEY})/(?P<index>-1|[0-9]{{1,9}})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TaskInstanceName:
    """A logical task instance of Airflow, without its try number: a retry has the same name, and finds its tasks.

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
        """Return the task instance in an owner's name, or in the name of its worker; None for all other names."""
        worker = _WORKER.fullmatch(owner)
        found = _INSTANCE.fullmatch(worker["name"] if worker else owner)
        return cls(found["dag"], found["run"], found["task"], int(found["index"])) if found else None


def worker_instance_id() -> str:
    """Return a unique id of a running worker: host, process id, and six random hexadecimal digits."""
    return f"{socket.gethostname().replace('/', '-')}-{os.getpid()}-{secrets.token_hex(3)}"


def worker_owner_name(name: str, instance: str, number: int) -> str:
    """Return the name of one owner of a worker."""
    return f"{name}/{instance}/{number}"
