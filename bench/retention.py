"""Retention: the calls that remove a history, and what an index on the ends of tasks would cost each completion."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import timedelta
from statistics import median, quantiles
from time import perf_counter

from airflow_provider_taskq.queue import Result, TaskQueue, connect
from bench.rig import Rig, in_turn, tasks

STORED = 1_000_000
FILL = (
    f"""INSERT INTO taskq_internal.task (sequence, created, due, pushed_in, topic_id, priority, identifier, payload)
    SELECT n, now() - (1 - n / {STORED}.0) * interval '2 days', now(), '1', topic_id, 0, 'task ' || n, '{{}}'
    FROM taskq_internal.topic, generate_series(1, {STORED}) n""",
    """INSERT INTO taskq_internal.ended (sequence, completed, available_at, topic_id, attempt, state, identifier)
    SELECT sequence, created + interval '10 s', due, topic_id, 1, CASE WHEN sequence % 100 = 0 THEN 3 ELSE 6 END,
        identifier FROM taskq_internal.task""",
    f"SELECT setval('taskq_internal.task_sequence', {STORED})",
    "VACUUM ANALYZE",
)
INDEX = "CREATE INDEX ended_by_end ON taskq_internal.ended (topic_id, completed)"
BATCH, BATCHES, ROUNDS = 1_000, 10, 20


def run(rig: Rig) -> None:
    """Remove half of a history of which one task in a hundred has failed and stays. Then compare completions."""
    print(f"\nRetention: {STORED:,} ended tasks, half of them older than the topic keeps them")
    with rig.database() as dsn, closing(connect(dsn, autocommit=True)) as conn:
        queue = TaskQueue(conn)
        queue.create_topic("bench", keep_succeeded="1d")
        for statement in FILL:
            conn.execute(statement.encode())
        _run_retention("the first run", queue)
        _run_retention("a run with nothing to remove", queue)
        conn.execute("UPDATE taskq_internal.retention_walk SET restarts = '-infinity'")
        _run_retention("a new walk, over the dead rows of the first run", queue)
    _compare_completions(rig)


def _run_retention(what: str, queue: TaskQueue) -> None:
    """Carry out one run, and print the times of its calls."""
    queue.conn.execute("UPDATE taskq_internal.upkeep SET due = '-infinity'")
    queue.conn.execute("UPDATE taskq_internal.retention_walk SET due = '-infinity'")
    times: list[float] = []
    purged, more = 0, True
    while more:
        start = perf_counter()
        done = queue.maintain()
        times.append(1000 * (perf_counter() - start))
        purged, more = purged + done.purged, done.more
    p99 = quantiles(times, n=100, method="inclusive")[98] if len(times) > 1 else times[0]
    each = f", {1000 * sum(times) / purged:.1f} us a task" if purged > BATCH else ""
    print(
        f"  {what}: {purged:,} tasks in {len(times):,} calls, median {median(times):.1f} ms, p99 {p99:.1f} ms,"
        f" most {max(times):.1f} ms{each}"
    )


def _compare_completions(rig: Rig) -> None:
    """Print the time and the WAL of a completion without and with an index on the ends of tasks."""
    with ExitStack() as stack:
        works: dict[str, Callable[[], float]] = {}
        wal: dict[str, list[float]] = {}
        for name in ("as it is", "with an index on (topic_id, completed)"):
            conn = stack.enter_context(closing(connect(stack.enter_context(rig.database()), autocommit=True)))
            if works:
                conn.execute(INDEX.encode())
            queue, wal[name] = TaskQueue(conn), []
            queue.create_topic("bench")
            works[name] = lambda queue=queue, written=wal[name]: _complete(queue, written)  # type: ignore[misc]
        figures = in_turn(works, ROUNDS)
    print(f"\nCompletion of {BATCH:,} tasks a call, {ROUNDS} rounds of {BATCH * BATCHES:,}")
    for name, values in figures.items():
        print(
            f"  {name:<40} {median(values):6.2f} us a task [{min(values):.2f}-{max(values):.2f}],"
            f" {median(wal[name]):.0f} bytes of WAL"
        )


def _complete(queue: TaskQueue, written: list[float]) -> float:
    """Complete a round of tasks. Return microseconds a task, and add the bytes of WAL a task to `written`."""
    owner = queue.register("bench", timedelta(hours=1))
    queue.push_stream("bench", iter(tasks(BATCH * BATCHES)))
    took = bytes_written = 0.0
    for _ in range(BATCHES):
        polled = queue.poll("bench", owner, BATCH)
        bytes_before = _wal_position(queue)
        start = perf_counter()
        queue.complete(owner, dict.fromkeys(polled, Result.SUCCESS))
        took += perf_counter() - start
        bytes_written += _wal_position(queue) - bytes_before
    written.append(bytes_written / (BATCH * BATCHES))
    return 1e6 * took / (BATCH * BATCHES)


def _wal_position(queue: TaskQueue) -> float:
    row = queue.conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return float(row[0])
