"""What an operator does to single tasks, and a worker to some of its own (sql/functions/tending.sql)."""

from collections.abc import Iterable
from datetime import datetime

from airflow_provider_taskq.queue.bounds import int_size
from airflow_provider_taskq.queue.models import Owner, Task
from airflow_provider_taskq.queue.verbs.call import Caller

LARGEST = 2**31 - 1


class TendingVerbs(Caller):
    """Changes of tasks that wait; the history keeps who did it (`acting`). InvalidState where one does not."""

    def pause_task(self, topic: str, sequence: int) -> bool:
        """Keeps a READY task from being handed out until it is resumed; False where it was paused already."""
        return bool(self._value("SELECT taskq.pause_task(%s::text, %s::bigint)", (topic, sequence)))

    def resume_task(self, topic: str, sequence: int) -> bool:
        """Lets a paused task go on: a retry now, any other in its old place; False where it was not paused."""
        return bool(self._value("SELECT taskq.resume_task(%s::text, %s::bigint)", (topic, sequence)))

    def set_due(self, topic: str, sequence: int, moment: datetime | None) -> None:
        """Sets when a READY task is due; None gives it its old place back."""
        self._rows("SELECT taskq.set_due(%s::text, %s::bigint, %s::timestamptz)", (topic, sequence, moment))

    def set_attempts(self, topic: str, sequence: int, attempts: int) -> None:
        """Sets how many failed attempts of a READY task count; InvalidTask where none would be left."""
        self._rows("SELECT taskq.set_attempts(%s::text, %s::bigint, %s::int)", (topic, sequence, attempts))

    def run_now(self, topic: str, sequences: Iterable[int]) -> int:
        """Makes READY tasks due now that are due later or paused; returns how many. All or none: InvalidState.

        Dependencies, the probe and the pause of the topic still keep a task.
        """
        return int(self._value("SELECT taskq.run_now(%s::text, %b::bigint[])", (topic, list(sequences))))

    def set_priority(self, topic: str, sequences: Iterable[int], priority: int) -> int:
        """Sets the priority of READY tasks, -100 to 100, higher first; returns how many changed. All or none."""
        call = "SELECT taskq.set_priority(%s::text, %b::bigint[], %s::int)"
        return int(self._value(call, (topic, list(sequences), priority)))

    def cancel(self, topic: str, sequences: Iterable[int]) -> int:
        """Ends READY tasks as FILTERED without running them; returns how many. All or none; `revive` takes it back."""
        return int(self._value("SELECT taskq.cancel(%s::text, %b::bigint[])", (topic, list(sequences))))

    def purge_outlived(self, topic: str, size: int = LARGEST) -> int:
        """Removes tasks with an error that have expired; returns how many.

        These are FAILED tasks that have outlived their time to live, and READY tasks that have also outlived the
        `horizon` of the retry policy. Until then, and without a horizon, a READY task has retries left and stays. A
        task without a time to live never expires. `size`: the most tasks of each state.
        """
        return int(self._value("SELECT taskq.purge_outlived(%s::text, %s::int)", (topic, int_size(size))))

    def give_back(self, owner: Owner, tasks: Iterable[Task | int]) -> int:
        """Gives some of an owner's tasks back: READY in their old place, the attempt not counted; returns how many.

        NotHeld, and nothing changed, where the owner does not hold one of them.
        """
        sequences = [task if isinstance(task, int) else task.sequence for task in tasks]
        call = "SELECT taskq.give_back(%s::text, %s::bigint, %b::bigint[])"
        return int(self._value(call, (owner.name, owner.fence, sequences)))
