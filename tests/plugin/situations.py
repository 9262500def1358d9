"""Databases for the views: topics with tasks in every situation, and a topic with a million tasks."""

from datetime import UTC, datetime, timedelta

import psycopg

from airflow_provider_taskq.queue import (
    Decision,
    Insertion,
    Json,
    NewTask,
    Result,
    RetryPolicy,
    Revival,
    Task,
    TaskQueue,
    TopicPolicy,
    config_hash,
    connect,
    ticks_every,
)
from tests.internals import empty_queue, lapse_lease, space_ends, store_million_tasks

HOSTILE_TEXT = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"&\u202e'
HOSTILE = f"a/b?c=d&e#f%2F {HOSTILE_TEXT}"
SECRET = "payload-that-stays-hidden-always"
HOLDER = "shop/manual__1/claim/-1"  # the owner's name of a task instance of dags/shop.py
TRACE = (
    'Traceback (most recent call last):\n  File "pay.py", line 17, in pay\nTimeoutError: the bank\'s gateway timed out'
)
HOUR = timedelta(hours=1)


def empty(conn: psycopg.Connection) -> None:
    """Removes everything from the queue of a database."""
    empty_queue(conn)


def fill(dsn: str) -> None:
    """Creates topics in every situation, named after it; `no-worker` is never polled."""
    with connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        for fill_topic in (
            _orders,
            _payments,
            _waiting,
            _reports,
            _no_worker,
            nightly,
            _lapsed,
            _hostile,
            _consumer_groups,
        ):
            fill_topic(queue)
        queue.create_topic("empty")
        # Spread the ends of tasks over the last day, so that the charts have bars.
        ago = "least(sequence % 3, 1) * make_interval(hours => sequence::int % 24, mins => sequence::int % 50)"
        space_ends(conn, ago=ago, ran="(sequence % 40) * interval '0.1 s'")
        conn.execute("ANALYZE")


def _orders(queue: TaskQueue) -> None:
    """A busy topic: most tasks succeeded, some are retried, a task instance holds two, and one is scheduled."""
    queue.create_topic("orders", TopicPolicy(RetryPolicy(max_attempts=3, base=HOUR)))
    queue.push(
        "orders", [NewTask(f"order-{n}", {"secret": SECRET, "n": n}, reference=f"batch-{n % 3}") for n in range(60)]
    )
    worker = queue.register("worker-7", 2 * HOUR)
    polled = queue.poll("orders", worker, 50)
    decisions: dict[Task | int, Decision | Result] = {
        task: Decision(Result.FAILURE, error=TRACE) for task in polled[:3]
    }
    decisions.update({task: Decision(Result.SUCCESS, {"secret": SECRET}) for task in polled[3:]})
    queue.complete(worker, decisions)
    queue.poll("orders", queue.register(HOLDER, 6 * HOUR), 2)
    queue.push("orders", [NewTask("order-50", {"secret": SECRET}), NewTask("later", delay=4 * HOUR, priority=5)])


def _payments(queue: TaskQueue) -> None:
    """A topic in trouble: failed, expired, suspended, filtered, recreated and redundant tasks."""
    queue.create_topic("payments", TopicPolicy(on_expiry="expire"))
    queue.push("payments", [NewTask(f"payment-{n}", {"secret": SECRET}) for n in range(12)])
    worker = queue.register("worker-8", HOUR)
    results = [Result.FAILURE] * 6 + [Result.SUSPENSION, Result.FILTER, Result.SUCCESS]
    polled = queue.poll("payments", worker, len(results))
    queue.complete(
        worker,
        {t: Decision(r, error=TRACE if r is Result.FAILURE else None) for t, r in zip(polled, results, strict=True)},
    )
    with queue.conn.transaction():
        queue.set_actor("maria")
        queue.revive("payments", revival=Revival.APPEND, sequences=[polled[5].sequence])
    queue.push("payments", ["payment-10"], Insertion.SUPERSEDE)
    queue.poll("payments", queue.register("worker-that-died", HOUR))
    _lapse(queue, "worker-that-died")
    queue.expire()


def _waiting(queue: TaskQueue) -> None:
    """A task with a failed dependency, and one behind it."""
    queue.create_topic("waiting")
    queue.push("waiting", [NewTask("invoice-0", depends_on=[("payments", "payment-0")]), NewTask("invoice-1")])


def _reports(queue: TaskQueue) -> None:
    queue.create_topic("reports")
    queue.push("reports", ["report-1", "report-2"])
    queue.pause_topic("reports")


def _no_worker(queue: TaskQueue) -> None:
    queue.create_topic("no-worker")
    queue.push("no-worker", [f"lonely-{n}" for n in range(30)])


def nightly(queue: TaskQueue) -> None:
    queue.create_topic("nightly")
    begin = datetime.now(UTC)
    ticks: list[tuple[datetime, NewTask | Json]] = [
        (moment, {"run": n}) for n, moment in enumerate(ticks_every(HOUR, begin, 12))
    ]
    queue.install_ticks("nightly", "reports/daily", config_hash("v1"), ticks)


def _lapsed(queue: TaskQueue) -> None:
    """A task whose owner's lease lapsed; no expire() has taken it back."""
    queue.create_topic("lapsed")
    queue.push("lapsed", ["stuck"])
    queue.poll("lapsed", queue.register("worker-that-sleeps", HOUR))
    _lapse(queue, "worker-that-sleeps")


def _hostile(queue: TaskQueue) -> None:
    """Names, payloads and errors that contain markup and scripts."""
    queue.create_topic(HOSTILE)
    queue.push(
        HOSTILE, [NewTask(HOSTILE_TEXT, {"html": HOSTILE_TEXT}, reference=HOSTILE_TEXT), NewTask("javascript:alert(1)")]
    )
    owner = queue.register(HOSTILE_TEXT, HOUR)
    (task,) = queue.poll(HOSTILE, owner, 1)
    queue.complete(owner, {task: Decision(Result.FAILURE, error=HOSTILE_TEXT)})


def _consumer_groups(queue: TaskQueue) -> None:
    events = queue.events("orders", None, 10)
    queue.advance("warehouse", "orders", 0, events.cursor)
    queue.lock("nightly-maintenance", "host-3", HOUR)


def _lapse(queue: TaskQueue, owner: str) -> None:
    """Lets the lease of an owner lapse ten minutes ago."""
    lapse_lease(queue.conn, owner, timedelta(minutes=10))


def fill_large(dsn: str) -> None:
    """Topic `work`: 600,000 succeeded, 100,000 failed, 100,000 ready, 190,000 scheduled, 10,000 held; 200 topics."""
    with connect(dsn, autocommit=True) as conn:
        queue = TaskQueue(conn)
        if "work" in queue.topics():
            return
        queue.create_topic("work", TopicPolicy(RetryPolicy(max_attempts=5, base=HOUR)))
        for number in range(200):
            queue.create_topic(f"topic-{number:03}")
        for number in range(20):
            queue.register(f"worker-{number}", HOUR)
        store_million_tasks(conn)
