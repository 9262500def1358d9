"""The tasks that each hostile input meets: the same ones for each input, so that an input can be repeated alone."""

from datetime import UTC, datetime, timedelta

from airflow_provider_taskq.queue import Decision, NewTask, Result, RetryPolicy, TaskQueue, TopicPolicy
from tests.internals import empty_queue

HOUR = timedelta(hours=1)
SEQUENCES = 9  # of the tasks: 1 to 9
OWNER = "owner"
TICK = datetime(2100, 1, 1, tzinfo=UTC)


def refill(queue: TaskQueue) -> None:
    """Removes everything, and stores the topic `work` with nine tasks: ended, held, waiting, scheduled, and a tick."""
    with queue.conn.transaction():
        empty_queue(queue.conn)
        queue.create_topic("work", TopicPolicy(RetryPolicy(max_attempts=2, base=HOUR)))
        queue.push("work", ["failed", "retried", "done", "off", "held", "a", "b", NewTask("later", delay=HOUR)])
        owner = queue.register(OWNER, HOUR)
        failed, retried, done, off, _ = queue.poll("work", owner, 5)
        results = {failed: Result.FAILURE, retried: Result.FAILURE, done: Result.SUCCESS, off: Result.SUSPENSION}
        queue.complete(owner, {task: Decision(result, error="it broke") for task, result in results.items()})
        queue.install_ticks("work", "tick", "hash", [(TICK, None)])
