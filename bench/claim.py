"""Claim: the cost of one poll, by the numbers of pending and finished tasks."""

from statistics import median

from airflow_provider_taskq.queue import Result, TaskQueue, connect
from bench.rig import Rig, seconds, tasks

SIZES = (1, 100)
REPETITIONS = 200
MOST = 1.5


def run(rig: Rig) -> None:
    """Measures claims at 1k, 100k and 1M pending tasks, and at 1k pending and 1M finished ones."""
    print(f"\nClaim: median ms of a poll of 1 and of 100, over {REPETITIONS}; flat is <= {MOST}x the first row")
    first: dict[int, float] = {}
    for pending, finished in ((1_000, 0), (100_000, 0), (1_000_000, 0), (1_000, 1_000_000)):
        costs = _costs(rig, pending, finished)
        first = first or costs
        shown = "   ".join(f"{costs[n]:7.3f} ms {costs[n] / first[n]:5.2f}x" for n in SIZES)
        print(f"  {pending:>9,} pending {finished:>9,} finished   {shown}")


def _costs(rig: Rig, pending: int, finished: int) -> dict[int, float]:
    """The median milliseconds of a poll by size; polled tasks are given back, so that the backlog stays the same."""
    with rig.database() as dsn, connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("bench")
        if finished:
            owner = queue.register("finisher")
            queue.push_stream("bench", iter(tasks(finished)))
            while found := queue.poll("bench", owner, 10_000):
                queue.complete(owner, dict.fromkeys(found, Result.SUCCESS))
        queue.push_stream("bench", iter(tasks(pending)))
        conn.execute("VACUUM ANALYZE")
        return {size: median(_poll(queue, size) for _ in range(REPETITIONS)) for size in SIZES}


def _poll(queue: TaskQueue, size: int) -> float:
    owner = queue.register("bench")
    cost = seconds(lambda: queue.poll("bench", owner, size))
    queue.release(owner)
    return cost * 1000
