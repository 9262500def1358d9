"""A process that moves a topic to its own tables and kills itself after some of its calls to the database."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, LiteralString

from airflow_provider_taskq.queue import TaskQueue, connect

# What own_partition calls, in order.
CALLS = (
    *(
        "pg_backend_pid",
        "begin_partition_move",
        "has_held_tasks",
        "create_own_tables",
        "lock_pushes",
        "close_shared_tables",
        "move_to_own_tables",
    ),
    *("unlock_pushes", "end_move_session"),
)


class Mortal(TaskQueue):
    """A queue whose process dies by SIGKILL as soon as a certain call has committed."""

    last = ""

    def _rows(self, call: LiteralString, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        found = super()._rows(call, arguments)
        if self.last in call:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


if __name__ == "__main__":
    with connect(sys.argv[1], autocommit=True) as conn:
        queue = Mortal(conn)
        queue.last = sys.argv[2]
        queue.own_partition("work")
