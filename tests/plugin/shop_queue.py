"""The queue of a shop for the pictures: one of its tasks is stuck."""

from collections.abc import Sequence
from datetime import timedelta

from airflow_provider_taskq.queue import (
    Decision,
    NewTask,
    Result,
    RetryPolicy,
    State,
    Task,
    TaskQueue,
    TopicPolicy,
)
from tests.internals import lapse_lease, set_created, space_ends
from tests.plugin.situations import nightly

HOUR = timedelta(hours=1)
TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/opt/shop/pay.py", line 17, in pay\n    gateway.charge(order, amount)\n'
    "TimeoutError: the bank's gateway did not answer within 30 s"
)
STUCK = "invoice-2041"
BLOCKER = "payment-2041"


def fill(queue: TaskQueue) -> None:
    """Topics orders, payments, invoices (its first task is stuck), reports (paused), nightly (ticks)."""
    for topic in queue.topics():
        queue.drop_topic(topic)
    _orders(queue)
    _payments(queue)
    queue.create_topic("invoices")
    queue.push("invoices", [NewTask(STUCK, {"order": 2041}, depends_on=[("payments", BLOCKER)])])
    queue.create_topic("reports")
    queue.push("reports", ["report-north", "report-south"])
    queue.pause_topic("reports")
    nightly(queue)
    queue.lock("nightly-maintenance", "host-3", HOUR)
    queue.advance("warehouse", "orders", 0, queue.events("orders", None, 900).cursor)
    _spread(queue)


def _orders(queue: TaskQueue) -> None:
    """A busy topic: a thousand tasks succeeded, some are retried, and a task instance holds two."""
    queue.create_topic("orders", TopicPolicy(RetryPolicy(max_attempts=3, base=HOUR)))
    queue.push("orders", [NewTask(f"order-{n}", {"order": n}, reference=f"batch-{n % 9}") for n in range(1200, 2260)])
    worker = queue.register("worker-7", 2 * HOUR)
    polled = queue.poll("orders", worker, 1000)
    failing = [task for task in polled if task.sequence % 70 == 0]
    queue.complete(worker, _ends(polled, failing))
    queue.poll("orders", queue.register("shop/manual__1/claim/-1", 6 * HOUR), 2)
    queue.push("orders", [NewTask("order-2300", {"order": 2300}, delay=4 * HOUR)])


def _payments(queue: TaskQueue) -> None:
    """A topic in trouble: one task in ten failed, some wait for the bank, and the worker of one died."""
    queue.create_topic("payments", TopicPolicy(on_expiry="expire"))
    queue.push("payments", [NewTask(f"payment-{n}", {"order": n, "card": "5500"}) for n in range(1900, 2060)])
    worker = queue.register("worker-8", HOUR)
    polled = queue.poll("payments", worker, 150)
    failing = [task for task in polled if task.identifier == BLOCKER or task.sequence % 10 == 0]
    waiting = [task for task in polled if task.sequence % 31 == 0 and task.identifier != BLOCKER]
    queue.complete(worker, _ends(polled, failing) | {task: Decision(Result.SUSPENSION) for task in waiting})
    queue.set_actor("maria")
    queue.revive("payments", sequences=[failing[0].sequence])
    queue.poll("payments", queue.register("worker-that-died", HOUR))
    lapse_lease(queue.conn, "worker-that-died")
    queue.expire()


def _ends(polled: Sequence[Task], failing: Sequence[Task]) -> dict[Task | int, Decision | Result]:
    """Decisions: SUCCESS for all tasks except the failing ones."""
    failure = Decision(Result.FAILURE, error=TRACE)
    return {task: failure if task in failing else Result.SUCCESS for task in polled}


def _spread(queue: TaskQueue) -> None:
    """Spreads the ends of tasks over the last day, most of them over the last hour."""
    space_ends(
        queue.conn,
        ago="random() * interval '59 min' + CASE sequence % 4 WHEN 0 THEN sequence % 23 ELSE 0 END * interval '1 h'",
        ran=f"CASE state WHEN {int(State.FAILED)} THEN 301 ELSE 4 + sequence % 30 END * interval '0.1 s'",
        waited="(1 + sequence % 7) * interval '0.8 s'",
    )
    tasks = (task for topic in queue.topics() for task in queue.page(topic, size=100_000))
    set_created(queue.conn, {task.sequence: task.created - timedelta(hours=25) for task in tasks})
