"""A real Airflow with the page for all tests of this folder, its users and its databases."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from starlette.routing import Route

from airflow_provider_taskq.queue import TaskQueue, connect
from tests.airflow.conftest import connection_json
from tests.plugin import situations
from tests.plugin.browser import browser, chromium, contexts, new_context, tab
from tests.plugin.page_site import ROLES, PageSite, environment

__all__ = ["browser", "chromium", "contexts", "new_context", "tab"]  # fixtures of the page's tests

LISTED = ["taskq_default", "taskq_acts", "taskq_large", "taskq_bare", "taskq_down"]
HIDDEN = "taskq_hidden"  # a connection of Airflow that `[taskq] conn_ids` does not list
SITUATIONS, ACTS, LARGE, BARE = (f"taskq_page_{name}_{os.getpid()}" for name in ("situations", "acts", "large", "bare"))
_ANYTHING = "marked-password-of-the-page"

Client = Callable[[str | None], httpx.Client]


def patient(dsn: str) -> str:
    """An Airflow connection with a longer timeout than the page's three seconds, for a loaded machine."""
    return connection_json(dsn, connect_timeout=30)


@pytest.fixture(scope="session")
def page_dsns(server_dsn: str, template: str) -> Iterator[dict[str, str]]:
    """The databases: situations (for views), acts (for actions), large (empty until `large_dsn`), bare (no schema)."""
    made = {SITUATIONS: template, ACTS: template, LARGE: template, BARE: "template0"}
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        for name, of in made.items():
            command = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            admin.execute(command.format(sql.Identifier(name), sql.Identifier(of)))
    dsns = {name.split("_")[2]: make_conninfo(server_dsn, dbname=name) for name in made}
    situations.fill(dsns["situations"])
    yield dsns
    with psycopg.connect(server_dsn, autocommit=True) as admin:
        for name in made:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def large_dsn(page_dsns: dict[str, str]) -> str:
    """A million tasks behind `taskq_large`."""
    situations.fill_large(page_dsns["large"])
    return page_dsns["large"]


@pytest.fixture(scope="session")
def page_site(
    page_dsns: dict[str, str], repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PageSite]:
    """The api-server, with its users and connections."""
    down = make_conninfo(page_dsns["acts"], host="127.0.0.1", port=9, password=_ANYTHING, connect_timeout=2)
    connections = {
        "taskq_default": patient(page_dsns["situations"]),
        "taskq_acts": patient(page_dsns["acts"]),
        "taskq_large": patient(page_dsns["large"]),
        "taskq_bare": patient(page_dsns["bare"]),
        "taskq_down": connection_json(down),
        HIDDEN: patient(page_dsns["situations"]),
    }
    with PageSite(tmp_path_factory.mktemp("page"), environment(connections, LISTED, repository)) as site:
        yield site


@pytest.fixture(scope="session")
def base_url(page_site: PageSite) -> str:
    """The URL of Airflow with its base path, without a slash at the end."""
    return page_site.base_url


@pytest.fixture(scope="session")
def tokens(page_site: PageSite) -> dict[str, str]:
    """The value of the cookie `_token` of each role's user."""
    return {role: page_site.token(role) for role in ROLES}


@pytest.fixture(scope="session")
def client(base_url: str, tokens: dict[str, str]) -> Iterator[Client]:
    """A client with the session of a role (None: without a session); its paths start at /taskq."""
    cookies: dict[str | None, dict[str, str]] = {None: {}, **{role: {"_token": tokens[role]} for role in ROLES}}
    clients = {
        role: httpx.Client(base_url=f"{base_url}/taskq", cookies=cookie, trust_env=False, timeout=60)
        for role, cookie in cookies.items()
    }
    yield clients.__getitem__
    for each in clients.values():
        each.close()


@pytest.fixture
def acts(page_dsns: dict[str, str]) -> Iterator[TaskQueue]:
    """The queue behind `taskq_acts`, emptied, with a topic `work`."""
    with connect(page_dsns["acts"], autocommit=True) as conn:
        situations.empty(conn)
        queue = TaskQueue(conn)
        queue.create_topic("work")
        yield queue


@pytest.fixture(scope="session")
def routes() -> list[tuple[str, str]]:
    """Each method and path of the application, for the connection taskq_acts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of modules that Airflow's API imports
        from airflow_provider_taskq.plugins.app import make_app
    found = [route for route in make_app().routes if isinstance(route, Route)]
    return [
        (method, route.path.replace("{conn_id}", "taskq_acts").replace("{path:path}", "anything"))
        for route in found
        for method in sorted(route.methods or ())
    ]
