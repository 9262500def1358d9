"""The rights of each role of Airflow's simple auth manager, by route and action: as in docs/production/page.md."""

from typing import Any

import pytest

from airflow_provider_taskq.queue import NewTask, TaskQueue
from tests.airflow.site import ROLES
from tests.plugin.conftest import Client

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise("Each route of the page needs a login, and each action and payload the right to it"),
]

LOOKS, REFUSED = 200, 403
# Viewer, user, op, admin.
VIEWING = (LOOKS, LOOKS, LOOKS, LOOKS)
ACTING = (REFUSED, REFUSED, LOOKS, LOOKS)
ACTIONS: dict[str, dict[str, Any]] = {
    "retry": {"topic": "work", "filter": {"state": "FAILED"}},
    "reassign": {"topic": "work", "filter": {"state": "FAILED"}, "options": {"result": "SUCCESS"}},
    "purge": {"topic": "work", "filter": {}},
    "release": {"options": {"owner": "holder"}},
    "push": {"topic": "work", "options": {"identifier": "new"}},
    "pause": {"topic": "work"},
    "resume": {"topic": "work"},
    "expire": {},
    "run_now": {"topic": "work", "filter": {}},
    "set_priority": {"topic": "work", "filter": {}, "options": {"priority": 1}},
    "cancel": {"topic": "work", "filter": {}},
}


def test_every_role_may_view_and_only_op_and_admin_may_act(
    client: Client, acts: TaskQueue, routes: list[tuple[str, str]]
) -> None:
    (task,) = acts.push("work", [NewTask("a", {"secret": 1})])
    owner = acts.register("holder")
    acts.poll("work", owner)
    parameters: dict[str, Any] = {"topic": "work", "sequence": task.sequence, "owner": "holder", "text": "a"}
    parameters |= {"dag_id": "shop", "run_id": "manual__1", "task_id": "claim"}
    views = [path for method, path in routes if method == "GET" and path.startswith("/api/")]
    table = {f"GET {path}": [client(role).get(path, params=parameters).status_code for role in ROLES] for path in views}
    reveal = {"topic": "work", "sequence": task.sequence}
    table["reveal"] = [client(role).post("/api/taskq_acts/reveal", json=reveal).status_code for role in ROLES]
    for action, body in ACTIONS.items():
        for confirm in (False, True):
            sent = {"action": action, "confirm": confirm, "expected": 10_000, **body}
            table[f"{action}, {confirm}"] = [answer(client, acts, role, sent) for role in ROLES]
    expected = {name: list(VIEWING if name.startswith("GET") else ACTING) for name in table}
    assert table == expected
    assert len(table) == len(views) + 1 + 2 * len(ACTIONS)
    posts = {path for method, path in routes if method == "POST" and path.startswith("/api/")}
    assert posts == {"/api/taskq_acts/reveal", "/api/taskq_acts/actions"}


def answer(client: Client, acts: TaskQueue, role: str, body: dict[str, Any]) -> int:
    """The status of an action. The owner `holder` has a lease before it."""
    acts.register("holder")
    return client(role).post("/api/taskq_acts/actions", json=body).status_code
