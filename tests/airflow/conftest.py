"""Airflow in this process: a home of its own, and connections from the environment."""

import asyncio
import atexit
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskq.queue import TaskQueue, connect, install
from demo.airflow_site import connection_json as site_connection_json
from demo.postgres import EmbeddedPostgres
from tests.airflow.chaos_site import airflow
from tests.airflow.site import share

__all__ = ["airflow"]  # a session fixture

# Airflow reads its configuration as soon as it is imported, and makes its home if there is none.
_home = tempfile.mkdtemp(prefix="taskq-airflow-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ.update(
    AIRFLOW_HOME=_home,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="True",
    AIRFLOW__CORE__DAGS_FOLDER=str(Path(__file__).parent / "dags"),
)

Connect = Callable[..., str]
# The connections of triggers to the test's database.
LINES = "SELECT pid FROM pg_stat_activity WHERE application_name = 'airflow-taskq' AND datname = current_database()"


def pytest_configure(config: pytest.Config) -> None:
    """Shares one Airflow with the other folders."""
    share(config)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an asynchronous test in an event loop of its own, for at most two minutes."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 120))
    return True


async def until(condition: Callable[[], bool], seconds: float = 100) -> None:
    """Waits for what a server or another thread changes."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  there is no event to await
            await asyncio.sleep(0.02)


def connection_json(dsn: str, conn_type: str = "taskq", **extra: Any) -> str:
    """Return an Airflow connection to the database of a DSN, as Airflow reads it from the environment."""
    return site_connection_json(dsn, conn_type=conn_type, extra=extra)


@pytest.fixture
def connect_airflow(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Return a function that creates an Airflow connection to the test's database and returns its id."""

    def connected(conn_id: str = "taskq_default", dsn: str = dsn, conn_type: str = "taskq", **extra: Any) -> str:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", connection_json(dsn, conn_type, **extra))
        return conn_id

    return connected


@pytest.fixture
def airflow_connection(connect_airflow: Connect) -> str:
    """Create the Airflow connection `taskq_default` to the test's database."""
    return connect_airflow()


@pytest.fixture
def own_server() -> Iterator[EmbeddedPostgres]:
    """A server that a test may stop."""
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        with connect(server.dsn) as connection:
            install(connection)
            TaskQueue(connection).create_topic("work")
        yield server


def claim_of(queue: TaskQueue, *identifiers: str, owner: str = "gate") -> dict[str, Any]:
    """Push tasks to `work`, claim them, and return the claim as a gate does."""
    queue.push("work", identifiers)
    registered = queue.register(owner)
    claimed = queue.claim("work", registered, len(identifiers))
    return {"topic": "work", "owner": owner, "fence": registered.fence, "claimed": claimed}


def context_of(task_id: str = "gate", run_id: str = "run", map_index: int = -1) -> Any:
    """Return the context of a task of DAG `dag`."""
    ti = SimpleNamespace(dag_id="dag", run_id=run_id, task_id=task_id, map_index=map_index)
    ti.get_first_reschedule_date = lambda _: None
    ti.pushed = {}
    ti.xcom_push = ti.pushed.__setitem__
    return {
        "ti": ti,
        "ds": "2013-01-01",
        "params": {},
    }


def executed(operator: Any, context: Any = None) -> Any:
    """Render an operator and execute it as Airflow does."""
    context = context or context_of(operator.task_id)
    operator.render_template_fields(context)
    return operator.execute(context)
