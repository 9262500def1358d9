"""Polling: how a thread becomes an owner, takes tasks, and finds again what it took when an answer was lost."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_taskq.queue import Condition, LeaseLost, Task, TaskQueue
from airflow_provider_taskq.worker.connection import Session, is_refused
from airflow_provider_taskq.worker.lease import Lease

if TYPE_CHECKING:
    from airflow_provider_taskq.worker.runtime import WorkerRuntime

T = TypeVar("T")


class Poller:
    """Takes tasks for one thread, as an owner of its own."""

    def __init__(self, shift: "WorkerRuntime", session: Session, owner: str) -> None:
        self._shift = shift
        self._session = session
        self._owner = owner
        self._tenure: Lease | None = None
        self.in_doubt = False  # whether it may hold tasks that it does not know of

    def tenure(self) -> Lease:
        """The lease to work under: registered where there is none, or where the last one is lost."""
        if self._tenure is None or self._tenure.lost is not None:
            with self._session.queue() as queue:
                since = time.monotonic()
                owner = queue.register(self._owner, self._shift.settings.lease)
            self._tenure = Lease(owner, self._shift.given_up, since)
            self.in_doubt = owner.resumed
            self._shift.keeper.add(self._tenure)
        return self._tenure

    def poll(self, size: int) -> list[Task]:
        """What is next: first what the owner holds unknown to this program."""
        tenure = self.tenure()
        if self.in_doubt and (found := self._found_again(tenure)):
            return found
        settings = self._shift.settings
        return self.asked(
            lambda queue: queue.poll(settings.topic, tenure.owner, size, settings.order, settings.condition)
        )

    def has_missed(self) -> bool:
        """Whether there is something that a poll could take, though one has just found nothing.

        A poll under a condition leaves out what another one looks at just then, which may take nothing of it: it
        began before the last task of that identifier was completed.
        """
        settings = self._shift.settings
        if settings.condition is Condition.NONE:
            return False
        with self._session.queue() as queue:
            return queue.has_unclaimed(settings.topic, settings.condition)

    def asked(self, call: Callable[[TaskQueue], T]) -> T:
        """Runs a call that claims tasks. After an error that leaves its outcome open, the next poll looks for them."""
        try:
            with self._session.queue() as queue:
                return call(queue)
        except Exception as error:
            self.in_doubt = self.in_doubt or not is_refused(error)
            raise

    def leave(self) -> None:
        """Ends the lease."""
        if self._tenure is not None:
            self._shift.dismiss(self._session, self._tenure)

    def look_after_lease(self, error: LeaseLost) -> LeaseLost | None:
        """Renews a lease that has merely lapsed; one that is gone is lost, with all that was held under it.

        Returns the error where it is not a matter of this lease.
        """
        tenure = self._tenure
        if tenure is None or tenure.lost is not None:
            return None
        try:
            with self._session.queue() as queue:
                queue.heartbeat(tenure.owner)
        except LeaseLost:
            self._shift.keeper.lose(tenure, error)
        return None

    def _found_again(self, tenure: Lease) -> list[Task]:
        """What the owner holds and no thread of this program has in hand."""
        known = {task for run in tenure.runs() for task in run.batch.tasks}  # before the look: nobody else adds to it
        with self._session.queue() as queue:
            held = queue.held(tenure.owner, self._shift.settings.topic)
        self.in_doubt = False
        return [task for task in held if task not in known]
