"""Clients of the page of the session's Airflow, and its databases."""

import warnings
from collections.abc import Callable, Iterator

import httpx
import pytest
from starlette.routing import Route

from airflow_provider_taskq.queue import TaskQueue, connect
from tests.airflow.conftest import connection_json  # it sets Airflow's home before the first import
from tests.airflow.site import ROLES, SharedAirflow, share
from tests.plugin import situations
from tests.plugin.browser import browser, chromium, contexts, idle, new_context, tab

# Fixtures of the page's tests.
__all__ = ["browser", "chromium", "connection_json", "contexts", "idle", "new_context", "tab"]

Client = Callable[[str | None], httpx.Client]


def pytest_configure(config: pytest.Config) -> None:
    """Shares one Airflow with the other folders."""
    share(config)


@pytest.fixture(scope="session")
def large_dsn(page_dsns: dict[str, str]) -> str:
    """A million tasks behind `taskq_large`."""
    situations.fill_large(page_dsns["large"])
    return page_dsns["large"]


@pytest.fixture(scope="session")
def base_url(page_site: SharedAirflow) -> str:
    """The URL of Airflow with its base path, without a slash at the end."""
    return page_site.base_url


@pytest.fixture(scope="session")
def tokens(page_site: SharedAirflow) -> dict[str, str]:
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
