"""The databases behind the page, and Airflow's connections to them."""

from collections.abc import Callable

import pytest
from psycopg.conninfo import make_conninfo

from demo.airflow_site import connection_json
from tests.plugin import situations

HIDDEN = "taskq_hidden"  # a connection of Airflow that `[taskq] conn_ids` does not list
_ANYTHING = "marked-password-of-the-page"


def patient(dsn: str) -> str:
    """An Airflow connection with a longer timeout than the page's three seconds, for a loaded machine."""
    return connection_json(dsn, extra={"connect_timeout": 30})


@pytest.fixture(scope="session")
def page_dsns(make_database: Callable[..., str]) -> dict[str, str]:
    """The databases: situations (for views), acts (for actions), large (empty until `large_dsn`), bare (no schema)."""
    dsns = {name: make_database(f"page_{name}") for name in ("situations", "acts", "large")}
    situations.fill(dsns["situations"])
    return {**dsns, "bare": make_database("page_bare", schema=False)}


@pytest.fixture(scope="session")
def page_connections(page_dsns: dict[str, str]) -> dict[str, str]:
    """Airflow's connections to them, to a server that is down, and one that the page does not show."""
    down = make_conninfo(page_dsns["acts"], host="127.0.0.1", port=9, password=_ANYTHING, connect_timeout=2)
    return {
        "taskq_page": patient(page_dsns["situations"]),
        "taskq_acts": patient(page_dsns["acts"]),
        "taskq_large": patient(page_dsns["large"]),
        "taskq_bare": patient(page_dsns["bare"]),
        "taskq_down": connection_json(down),
        HIDDEN: patient(page_dsns["situations"]),
    }
