"""Interleavings of two and more sessions, from the specifications in tests/queue/interleavings."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from airflow_provider_taskq.queue import TaskQueue
from tests.queue.interleavings.runner import FOLDER, Permutation, Run, Session, read_specs

pytestmark = pytest.mark.promise("A call that raises an error has changed nothing")

SPECS = read_specs()
VERBS = (FOLDER / "verbs.sql").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def monitor(server_dsn: str) -> Iterator[psycopg.Connection]:
    """A session that sees for which sessions the others wait."""
    with psycopg.connect(server_dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def take(
    conn: psycopg.Connection, monitor: psycopg.Connection, open_queue: Callable[[], TaskQueue]
) -> Callable[[Permutation], None]:
    """Runs a permutation on an empty database."""

    def opened() -> Session:
        mine = open_queue().conn
        mine.autocommit = True
        return Session(mine, False)

    def take(permutation: Permutation) -> None:
        conn.execute(VERBS.encode())
        Run(conn, monitor, opened).take(permutation)

    return take


@pytest.mark.parametrize("name", SPECS, ids=list(SPECS))
def test_an_interleaving(take: Callable[[Permutation], None], name: str) -> None:
    take(SPECS[name])
