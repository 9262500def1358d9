"""The page behind the FAB auth manager: the table and the commands of docs/production/page.md."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from airflow_provider_taskq.queue import TaskQueue
from demo.airflow_api import until
from tests.fab.conftest import ROLES, Client, FabSite

pytestmark = pytest.mark.timeout(1200)

VIEWS = ("/taskq/api/connections", "/taskq/api/taskq_default/topics", "/taskq/api/taskq_default/health")
PAUSE = {"action": "pause", "topic": "work", "confirm": True}
SEEN_SECONDS = 120  # FAB keeps the rights of a user for half a minute


def view(client: Client, role: str | None) -> set[int]:
    return {client(role).get(path, params={"topic": "work"}).status_code for path in VIEWS}


def act(client: Client, role: str | None) -> int:
    return client(role).post("/taskq/api/taskq_default/actions", json=PAUSE).status_code


def commands(repository: Path) -> list[list[str]]:
    """Return the `airflow roles` commands of docs/production/page.md, without the word `airflow`."""
    text = (repository / "docs" / "production" / "page.md").read_text(encoding="utf-8")
    return [shlex.split(line, comments=True)[1:] for line in re.findall(r"^airflow roles .*$", text, re.MULTILINE)]


def test_the_servers_import_the_installed_wheel(repository: Path, fab_site: FabSite) -> None:
    """This process imports the checkout. The test therefore checks which package the servers import."""
    installed = fab_site.airflow("providers", "list", "-o", "plain")
    assert "airflow-provider-taskq" in installed
    assert importlib.util.find_spec("airflow.providers.fab") is not None
    plugins = fab_site.airflow("plugins", "-o", "json")
    assert '"taskq"' in plugins
    assert str(repository) not in plugins


def test_every_role_of_fab_may_view_and_only_op_and_admin_may_act(client: Client, work: TaskQueue) -> None:
    work.push("work", ["a"])
    viewed = {role: view(client, role) for role in (None, *ROLES)}
    assert viewed == {None: {401}, "Viewer": {200}, "User": {200}, "Op": {200}, "Admin": {200}}
    statuses = {role: act(client, role) for role in (None, *ROLES)}
    assert statuses == {None: 401, "Viewer": 403, "User": 403, "Op": 200, "Admin": 200}
    shown = {role: client(role).get("/api/v2/plugins").status_code for role in ROLES}
    assert shown == {"Viewer": 403, "User": 403, "Op": 200, "Admin": 200}  # Airflow's own rule for its navigation


def test_the_documented_commands_grant_and_revoke_rights(
    repository: Path, fab_site: FabSite, client: Client, work: TaskQueue
) -> None:
    show, let_act, hide = commands(repository)
    for command in (show, let_act, hide):
        assert re.search(r"(Added|Deleted) [1-9]\d* permission", fab_site.airflow(*command)), command

    def rights() -> tuple[object, ...]:
        plugins = [client(role).get("/api/v2/plugins").status_code for role in ("Viewer", "User")]
        return plugins, act(client, "User"), view(client, "Viewer")

    until(
        lambda: True if rights() == ([200, 200], 200, {403}) else None,
        SEEN_SECONDS,
        lambda: f"the commands had no effect: {rights()}",
    )
    assert act(client, "Viewer") == 403
    assert work.topics() == ["work"]
