"""Programs that the kill tests start and kill: a producer and a consumer, whose effects are rows of their own tables.

    python -m tests.queue.consumer produce|consume|stream NAME

The DSN comes from TASKQ_DSN. A producer writes a row of `pushed` for each task in the transaction that pushes it; a
consumer a row of `ledger` for each task in the transaction that completes it. Both run until they are killed. If the
server stops, they connect again when it is back.
"""

import itertools
import sys
import time
from pathlib import Path

import psycopg

from airflow_provider_taskq.queue import LeaseLost, NewTask, Result, TaskQueue, TaskQueueError, connect

TABLES = """CREATE TABLE pushed (identifier text PRIMARY KEY);
    CREATE TABLE ledger (sequence bigint, identifier text, by text);
    CREATE TABLE enough (done boolean)"""


def enough(conn: psycopg.Connection) -> bool:
    """Return whether the test has requested a stop."""
    return conn.execute("SELECT FROM enough").fetchone() is not None


def produce(conn: psycopg.Connection, name: str) -> None:
    """Pushes a few tasks at a time, each with its row, until the test requests a stop."""
    queue = TaskQueue(conn)
    numbers = itertools.count()
    run = time.time_ns()
    while not enough(conn):
        names = [f"{name}-{run}-{next(numbers)}" for _ in range(5)]
        queue.push("work", [NewTask(identifier, {"by": name}) for identifier in names])
        conn.cursor().executemany("INSERT INTO pushed VALUES (%s)", [(identifier,) for identifier in names])
        conn.commit()


def consume(conn: psycopg.Connection, name: str) -> None:
    """Completes the tasks that the name held before, then polls. Commits each effect with its completion."""
    queue = TaskQueue(conn)
    owner = queue.register(name)
    conn.commit()
    tasks = queue.held(owner)
    while tasks or not enough(conn):
        conn.commit()
        for task in tasks:
            row = (task.sequence, task.identifier, f"{name} {owner.fence}")
            conn.execute("INSERT INTO ledger VALUES (%s, %s, %s)", row)
            queue.complete(owner, {task: Result.SUCCESS})
            conn.commit()
        owner = queue.heartbeat(owner)
        tasks = queue.poll("work", owner, 4)
        conn.commit()


def stream(conn: psycopg.Connection, _: str) -> None:
    """Pushes 200,000 tasks in one call, and prints the size of this program before, and its maximum, in KiB."""
    before = _greatest_size()
    tasks = (NewTask(f"task-{number}", {"number": number, "text": "x" * 100}) for number in range(200_000))
    pushed = TaskQueue(conn).push_stream("work", tasks)
    conn.commit()
    sys.stdout.write(f"{pushed.count} {before} {_greatest_size()}\n")


def _greatest_size() -> int:
    """The maximum resident size of this program in KiB.

    Read from the kernel's statistics of this program: `ru_maxrss` starts with the size of the parent program.
    """
    [line] = [line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if "VmHWM" in line]
    return int(line.split()[1])


def main() -> None:
    """Runs the program again after the server went away or the lease was lost."""
    action, name = sys.argv[1:]
    while True:
        try:
            with connect() as conn:
                {"produce": produce, "consume": consume, "stream": stream}[action](conn, name)
                return
        except (psycopg.OperationalError, TaskQueueError) as error:
            if not isinstance(error, psycopg.OperationalError | LeaseLost) and "cannot connect" not in str(error):
                raise
            time.sleep(0.05)  # until the server is back


if __name__ == "__main__":
    main()
