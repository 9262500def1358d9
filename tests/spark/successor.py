"""A successor, which takes over the owner of a drain while its executors work."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_taskq.queue import TaskQueue, connect
from tests.queue.conftest import until


@contextmanager
def taken_over(dsn: str, gate: Path) -> Iterator[None]:
    """Registers the owner `me` again when rows are staged; then opens the gate that the executors wait for."""

    def take_over() -> None:
        with connect(dsn, autocommit=True) as conn:
            until(lambda: conn.execute("SELECT FROM taskq.staged LIMIT 1").fetchone() is not None, 600)
            TaskQueue(conn).register("me")

    with ThreadPoolExecutor(1) as pool:
        successor = pool.submit(take_over)
        try:
            yield
            successor.result(600)
        finally:
            gate.touch()
