"""A call without an answer: the server carried it out, or not, or will do so after a while.

Two calls of a worker change tasks: a claim and a commit. Each has these states:

               refused by the server: it changed nothing
               +--------+
               v        |
    call -> ANSWERED ---+
               |  ^
    no answer  |  | claim: three lengths of the lease are over
               |  | commit: the batch is committed, or its lease is lost
               v  |
            UNANSWERED --+
                ^        | look at what the owner holds: at once, then every third of the lease
                +--------+

A look after a claim finds tasks that this process does not know: they are handled like polled ones. A look after a
commit finds the tasks of the batch: held ones are committed again, and if none is held, the batch is committed.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from airflow_provider_taskq.queue import Decision, Polled, Task, TaskQueue
from airflow_provider_taskq.queue.faults import classify
from airflow_provider_taskq.worker.lease import InFlightBatch, Lease

_LEASES = 3  # lengths of the lease after which the server does not carry a claim out any more
_LONGEST_INTERVAL = 10.0  # seconds between two looks


class UnansweredClaims:
    """The claims of one owner that got no answer, and the time of the next look for their tasks.

    :param lease: length of the lease, in seconds.
    """

    def __init__(self, lease: float) -> None:
        self._lasts, self._every = _LEASES * lease, min(_LONGEST_INTERVAL, lease / 3)
        self._look_at = math.inf  # by time.monotonic()
        self._ends = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run a claim in the block. If it gets no answer, the first look is due at once."""
        try:
            yield
        except Exception as error:
            if not classify(error).is_answer:
                self.expect()
                self._ends = self._look_at + self._lasts
            raise

    def expect(self) -> None:
        """Make a look due now, as after a registration that resumes the tasks of an earlier one."""
        self._look_at = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the next call has to be `find`."""
        return time.monotonic() >= self._look_at

    def find(self, queue: TaskQueue, lease: Lease, topic: str) -> Polled:
        """Return the tasks that the owner holds and this process does not know. If it fails, it stays due."""
        # Known before the call: meanwhile other threads may end batches of this lease, but they add none.
        known = {task for batch in lease.batches for task in batch.tasks}
        found = Polled(task for task in queue.held(lease.owner, topic) if task not in known)
        if found:
            found.fence = queue.draw_fence(lease.owner)
        following = time.monotonic() + self._every
        self._look_at = following if following < self._ends else math.inf
        return found


class UnansweredCommit:
    """The commit of one batch: whether an earlier call may have committed the batch."""

    def __init__(self) -> None:
        self._is_sent = self._is_unanswered = False

    def failed(self, error: BaseException) -> None:
        """Note a failed call."""
        self._is_sent = True
        self._is_unanswered |= not classify(error).is_answer

    def left(
        self, queue: TaskQueue, in_flight: InFlightBatch, decisions: Mapping[Task, Decision]
    ) -> Mapping[Task, Decision] | None:
        """Return the decisions that are left to commit, or None if an earlier call has committed the batch.

        Leaves out tasks that were purged or dropped meanwhile. Raises LeaseLost if the lease is gone.
        """
        if not self._is_sent:
            return decisions
        owner = in_flight.lease.owner
        queue.heartbeat(owner)
        held = {task: task.attempt for task in queue.held(owner)}
        for other in in_flight.lease.batches:
            if other is not in_flight:
                for task in other.tasks:
                    # The call without an answer made the task ready, and a later poll claimed it again.
                    held.pop(task, None)
        left = {task: decision for task, decision in decisions.items() if held.get(task) == task.attempt}
        return None if self._is_unanswered and not left else left
