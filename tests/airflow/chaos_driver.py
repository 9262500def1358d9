"""A driver in a process of its own, which outlives the Airflow task that submitted it, as in Spark's cluster modes.

It takes the gate's tasks over, as a drain does, and waits for a signal. Then it completes them and its row of `jobs` in
one transaction.
"""

import os
import sys
import time

from airflow_provider_taskq.queue import Decision, LeaseLost, Result, TaskQueue, connect
from airflow_provider_taskq.queue.claims import Claim


def drive(queue: TaskQueue, job: str, claim: Claim, completes: bool) -> None:
    """Run one job, from the takeover to its last state."""
    owner, topic = queue.take_over(claim.owner, claim.fence), claim.topic
    tasks = queue.held(owner, topic)
    queue.conn.execute(
        "UPDATE jobs SET state = 'RUNNING', tasks = %s, driver = %s WHERE job = %s",
        (sorted(task.identifier for task in tasks), os.getpid(), job),
    )
    while not queue.conn.execute("SELECT FROM signals WHERE topic = %s", (topic,)).fetchall():
        time.sleep(0.1)  # poll: the test process may be killed before it could notify
    try:
        with queue.conn.transaction():
            queue.conn.execute("UPDATE jobs SET state = 'FINISHED' WHERE job = %s", (job,))
            if completes:
                queue.complete(owner, {task.sequence: Decision(Result.SUCCESS) for task in tasks})
    except LeaseLost:
        queue.conn.execute("UPDATE jobs SET state = 'FAILED' WHERE job = %s", (job,))


if __name__ == "__main__":
    with connect(os.environ["TASKQ_DSN"], autocommit=True) as connection:
        job, claim, what = sys.argv[1:]
        drive(TaskQueue(connection), job, Claim.parse(claim), what == "completes")
