"""With a million tasks each view reads a bounded number of rows and pages."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_taskq.queue import State, TaskQueue, connect
from airflow_provider_taskq.queue.inspect import BUDGET
from airflow_provider_taskq.queue.reports import TaskFilter
from tests.queue.explained import explain

pytestmark = pytest.mark.promise("A view is read-only, has a time limit, and reads a bounded number of rows")

NOW = datetime.now(UTC)
SINCE, UNTIL = NOW - timedelta(hours=20), NOW - timedelta(hours=19)
FILTERS = [
    TaskFilter(),
    *(TaskFilter(state=state) for state in State),
    *(
        TaskFilter(status=status)
        for status in ("retrying", "scheduled", "ready", "blocked", "paused", "exhausted", "failed")
    ),
    TaskFilter(identifier="task-7"),
    TaskFilter(reference="batch-500"),
    TaskFilter(reference="batch-500", state=State.FAILED),
    TaskFilter(error="no task has this"),
    TaskFilter(error="no task has this", state=State.SUCCEEDED),
    TaskFilter(error="no task has this", state=State.READY),
    TaskFilter(pushed_with=1),
    TaskFilter(since=SINCE, until=UNTIL),
    TaskFilter(since=SINCE, until=UNTIL, state=State.FAILED),
]
VIEWS: dict[str, Callable[[TaskQueue], object]] = {
    "topics": lambda queue: queue.browse_topics(size=1001),
    "search": lambda queue: queue.search_tasks("batch-500"),
    "search by sequence": lambda queue: queue.search_tasks("500"),
    "topic": lambda queue: queue.browse_topic("work"),
    "bars": lambda queue: queue.throughput(timedelta(minutes=3), 20),
    "hour": lambda queue: queue.throughput(timedelta(minutes=1), 60),
    "day": lambda queue: queue.throughput(timedelta(hours=1), 24),
    "lines": lambda queue: queue.browse_tasks("work", list(range(1, 1_000_000, 20_000))),
    "why": lambda queue: queue.explain("work", 999_999),
    "timeline": lambda queue: queue.timeline("work", 999_999),
    "owners": lambda queue: queue.browse_owners(),
    "held": lambda queue: queue.browse_held("worker-3"),
    "holders": lambda queue: queue.browse_holders("work"),
    "locks": lambda queue: queue.browse_locks(),
    "consumer_groups": lambda queue: queue.partition_states(size=100),
    "ticks": lambda queue: queue.browse_ticks("work"),
    "health": lambda queue: queue.health(),
    "audit": lambda queue: queue.audit_trail(),
}
# Views that read a sample of 2,000 pages, with the number of pages that they may read. Health computes the share of
# failures from the sample, and reads more for its other findings.
SAMPLED = {"bars": 3_000, "hour": 3_000, "day": 3_000, "health": 15_000}
MOST_ROWS = 8 * BUDGET
TASKS = {"task", "live", "ended", "history", "owner", "task_shared", "live_shared", "ended_shared"}


@pytest.mark.slow
@pytest.mark.faults  # a million tasks
def test_every_view_reads_a_bounded_number_of_rows(large_dsn: str) -> None:
    views = dict(VIEWS)
    for number, given in enumerate(FILTERS):
        for newest in (True, False):
            views[f"{number} {given} {newest}"] = lambda queue, given=given, newest=newest: queue.find_tasks(  # type: ignore[misc]
                "work", given, newest=newest, size=51
            )
    wide = {}
    with connect(large_dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        for name, view in views.items():
            seen = explain(conn, lambda view=view: view(queue))  # type: ignore[misc]
            pages = {"pages": seen.pages} if name in SAMPLED and seen.pages > SAMPLED[name] else {}
            rows = sum(seen.rows.values())
            if seen.whole & TASKS or pages or (name not in SAMPLED and rows > MOST_ROWS):
                wide[name] = f"{rows:,} rows, {seen.pages:,} pages, {seen.whole or 'no table'} as a whole: {seen.rows}"
    assert not wide, "\n".join(f"{name}: {found}" for name, found in wide.items())
